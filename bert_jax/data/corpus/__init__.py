"""Builds, writes and reads corpora: TFRecord shards of token ids and a manifest."""
