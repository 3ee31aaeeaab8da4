"""Shows the rows of a step: masks, segments, labels and where each text came from."""
