"""JSONPath in kubectl's own dialect (client-go's `util/jsonpath`): templates, read and filled in. Pure."""
