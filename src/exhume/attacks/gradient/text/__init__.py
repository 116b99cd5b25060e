"""Words and sentences from the updates of text models."""
