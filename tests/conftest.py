"""What all tests share: contracts are importable, and their assertions say what they compared."""

import pytest
import torch

pytest.register_assert_rewrite("contracts.family_contract")

# The tensors here are small: handing them to more threads costs more than it saves.
torch.set_num_threads(1)
