"""The gRPC API: the same generations, models and sessions as over HTTP.

Messages of `protos/gateway/v1` enter and become a GenerationRequest; events of generations leave as messages. Errors
leave as they are raised: the interceptors of `specdec.serving` turn them into gRPC statuses.
"""
