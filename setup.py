"""Only what pyproject.toml cannot say: that the C extension is built by cffi."""

from setuptools import setup

setup(cffi_modules=["build_ext.py:ffibuilder"])
