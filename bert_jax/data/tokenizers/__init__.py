"""WordPiece and SentencePiece tokenizers and their training."""
