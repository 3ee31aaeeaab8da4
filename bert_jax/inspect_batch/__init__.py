"""Shows the rows of a step: masks, segments, labels and source documents."""
