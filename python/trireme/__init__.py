"""Trireme's collectives for PyTorch: `torch.distributed.init_process_group("trireme")`. See docs/pytorch.md."""
