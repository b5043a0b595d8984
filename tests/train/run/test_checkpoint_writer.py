"""Checkpoints written beside the training: what they hold, how they are hashed, and what a full disk does."""

from __future__ import annotations

import errno
import hashlib
import resource
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from policies import trainer
from safetensors.torch import load_file

from tstar_train import checkpoint
from tstar_train.checkpoint import CheckpointWriter, Progress, latest_checkpoint, load_state, read_state
from tstar_train.config import Config
from tstar_train.learner.state import HashedFile, LearnerState, write_tensors
from tstar_train.policy.files import sha256_of
from tstar_train.policy.model import load_policy

DTYPES = [
    *(torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64),
]


def small():
    return trainer(Config(env="hotpotqa", model="tiny"), load_policy("tiny", "search_qa"))


def writer_of(folder, beside=True):
    return CheckpointWriter(folder, 2, lambda iteration: (), beside)


@settings(max_examples=30, deadline=None)
@given(
    shapes=st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3)), max_size=6)
)
def test_tensors_are_read_by_safetensors_and_hashed_as_they_are_on_disk(shapes, tmp_path_factory):
    path = tmp_path_factory.mktemp("tensors") / "t.safetensors"
    tensors = {f"t{n}": (torch.randn(shape) * 9).to(dtype) for n, (dtype, shape) in enumerate(shapes)}
    assert write_tensors(path, tensors) == sha256_of(path)
    found = load_file(path)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape
        assert torch.equal(found[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


def test_a_hashed_file_takes_what_torch_saves(tmp_path):
    state = {"state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.randn(300, 200)}}}
    with HashedFile(tmp_path / "o.pt") as file:
        torch.save(state, file)
        written = file.sha256
    assert written == hashlib.sha256((tmp_path / "o.pt").read_bytes()).hexdigest()
    again = torch.load(tmp_path / "o.pt", weights_only=True)
    assert torch.equal(again["state"][0]["exp_avg"], state["state"][0]["exp_avg"])


def test_a_copy_does_not_change_with_the_model(tmp_path):
    weights, moments = torch.ones(3), torch.ones(2)
    state = LearnerState(iter([("policy", {"w": weights})]), {"state": {0: {"m": moments}}})
    copy = state.in_memory()
    weights += 1
    moments += 1
    copy.write(tmp_path)
    assert load_file(tmp_path / "policy.safetensors")["w"].tolist() == [1, 1, 1]
    assert torch.load(tmp_path / "optimizer.pt", weights_only=True)["state"][0]["m"].tolist() == [1, 1]


def test_training_goes_on_while_its_checkpoint_is_written(tmp_path, monkeypatch):
    go, real = threading.Event(), checkpoint.write_checkpoint

    def slow(*arguments):
        assert go.wait(60)
        return real(*arguments)

    monkeypatch.setattr(checkpoint, "write_checkpoint", slow)
    one = small()
    before = [p.detach().clone() for p in one.policy.model.parameters()]
    writer = writer_of(tmp_path)
    writer.save(one, Progress(1))
    assert latest_checkpoint(tmp_path) is None and not writer.failed
    with torch.no_grad():
        for parameter in one.policy.model.parameters():
            parameter += 1.0
    one.cursor = 99
    go.set()
    writer.wait()
    found = latest_checkpoint(tmp_path)
    assert read_state(found)["cursor"] == 0
    load_state(one, found)
    for old, now in zip(before, one.policy.model.parameters(), strict=True):
        assert torch.equal(old, now)


@pytest.mark.parametrize("beside", [True, False])
def test_a_full_disk_is_told_and_the_checkpoint_before_stays(tmp_path, beside):
    one, writer = small(), writer_of(tmp_path, beside)
    writer.save(one, Progress(1))
    writer.wait()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, limits[1]))  # a write beyond fails, as on a full disk
    try:
        with pytest.raises(OSError, match="could not be written") as caught:
            writer.save(one, Progress(2))
            writer.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.errno == errno.ENOSPC and not writer.failed
    assert read_state(latest_checkpoint(tmp_path))["iteration"] == 1
    writer.save(one, Progress(3))
    writer.wait()
    assert latest_checkpoint(tmp_path).name == "000003"
