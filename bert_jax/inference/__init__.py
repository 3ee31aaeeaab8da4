"""Features and predictions of texts."""
