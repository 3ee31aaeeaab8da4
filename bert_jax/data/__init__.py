"""From raw text to batches; the only part of training that uses TensorFlow.

Execution order: sources -> cleaning -> tokenizers -> encoding -> sorted_runs ->
merging -> corpus_writer, row_counts -> corpus (on disk) -> visits (pairs, packing) ->
masking -> pipeline.
"""
