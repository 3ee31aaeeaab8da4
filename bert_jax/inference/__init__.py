"""Feature extraction and prediction for texts."""
