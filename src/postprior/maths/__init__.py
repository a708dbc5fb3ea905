"""Formulas: tensors in, tensors out; randomness only by a generator that is passed in."""
