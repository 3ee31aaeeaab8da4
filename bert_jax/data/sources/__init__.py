"""Documents from files, TensorFlow datasets and the installed Python."""
