"""The network: BERT, its layers and heads, and the names of its parameters."""
