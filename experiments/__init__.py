"""The experiments of the attention papers, at the size of one GPU: python -m experiments --help."""
