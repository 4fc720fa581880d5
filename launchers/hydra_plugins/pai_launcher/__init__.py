"""`hydra/launcher=pai`: jobs on Alibaba Cloud's PAI. An object store keeps their code and their runs."""
