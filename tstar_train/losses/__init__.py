"""The losses of an update, as pure functions on tensors of log-probabilities and values."""

from tstar_train.losses.aggregate import Aggregation, loss_denominator, token_weight
from tstar_train.losses.clip import PolicyLoss, clipped_policy_loss
from tstar_train.losses.kl import kl_k3
from tstar_train.losses.surgical import SurgicalLoss, surgical_loss
from tstar_train.losses.value import ValueLoss, value_loss

__all__ = [
    "Aggregation",
    "PolicyLoss",
    "SurgicalLoss",
    "ValueLoss",
    "clipped_policy_loss",
    "kl_k3",
    "loss_denominator",
    "surgical_loss",
    "token_weight",
    "value_loss",
]
