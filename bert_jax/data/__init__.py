"""From raw text to batches; the only part of training that uses TensorFlow.

Execution order: sources -> cleaning -> tokenizers -> encoding -> sorted_runs ->
merging -> corpus_writer -> corpus (on disk) -> pairs -> packing -> masking -> pipeline.
"""
