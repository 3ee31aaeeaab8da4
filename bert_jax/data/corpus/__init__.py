"""Building, writing and reading of corpora: TFRecord shards and a manifest."""
