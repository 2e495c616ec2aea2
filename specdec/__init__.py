"""Code shared by the three services, and the command line.

`rules` is the algorithm of speculative decoding, beside `sampling`, `trees` and `planning`. `engine` runs Hugging Face
models, `wire` turns values into protobuf messages and back, and `serving` is what every process needs: settings,
servers, metrics, discovery. These three build
on `rules` and do not import each other. `cli` is the command line, `errors` has every error that is raised on purpose.
"""
