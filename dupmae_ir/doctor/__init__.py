"""Checking a machine: ``python -m dupmae_ir.doctor``."""
