"""Fine-tuning on labelled tasks: data, features, training, predictions, metrics."""
