"""Tools: what a caller offers to the model, how a model writes a call of one, and how such text is read.

`values` has tools and calls. `formats` lists the ways in which models write calls; `parsers` read them from a stream
of text, `grammars` bind a model to them, and `template` describes tools to a model whose chat template cannot.
"""
