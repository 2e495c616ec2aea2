"""What the services share.

The ground floor is pure mathematics on tensors and values: errors, params, prefix, vocabulary, draft, rng, gamma,
sampling, acceptance, coupling, verification, proposal. Above it are three rooms with no doors between them: `wire`
(bytes and values), `engine` (Hugging Face models) and `serving` (processes). `cli` is the command line.
"""
