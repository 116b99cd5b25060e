"""Whole batches behind a fully connected layer with gates, at honest weights."""
