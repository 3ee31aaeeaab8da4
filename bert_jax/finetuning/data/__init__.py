"""Reads labelled data: tables, CoNLL and SQuAD files, TensorFlow datasets."""
