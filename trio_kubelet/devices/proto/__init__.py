"""Generated messages of device plugins (`plugin_pb2`); `tools/gen_cri_proto.py` writes them."""
