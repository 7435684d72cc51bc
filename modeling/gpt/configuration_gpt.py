# Copyright 2026 the authors of this model zoo.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""GPT's configuration: the fields of every published `config.json` with `"model_type": "openai-gpt"`, and more."""

from huggingface_hub.dataclasses import strict
from transformers.configuration_utils import PreTrainedConfig
from transformers.utils import auto_docstring

from ..hub_code import SavedWithCode, announce_names, copy_code


# Which class each Auto class finds in a saved folder.
AUTO_MAP = {
    "AutoConfig": "configuration_gpt.ZooGPTConfig",
    "AutoModel": "modeling_gpt.ZooGPTModel",
    "AutoModelForPreTraining": "modeling_gpt.ZooGPTLMHeadModel",
    "AutoModelForCausalLM": "modeling_gpt.ZooGPTLMHeadModel",
    "AutoModelForSequenceClassification": "modeling_gpt_tasks.ZooGPTForSequenceClassification",
    "AutoModelForMultipleChoice": "modeling_gpt_tasks.ZooGPTForMultipleChoice",
    "AutoModelForTokenClassification": "modeling_gpt_tasks.ZooGPTForTokenClassification",
    "AutoModelForQuestionAnswering": "modeling_gpt_tasks.ZooGPTForQuestionAnswering",
}
# What `architectures` says of each class that transformers has as well: its own, which reads the same folder.
STOCK = {
    "ZooGPTModel": "OpenAIGPTModel",
    "ZooGPTLMHeadModel": "OpenAIGPTLMHeadModel",
    "ZooGPTDoubleHeadsModel": "OpenAIGPTDoubleHeadsModel",
    "ZooGPTForSequenceClassification": "OpenAIGPTForSequenceClassification",
}
# The names of activations in the files. "gelu" is the tanh approximation, which the release computes under that name.
ACTIVATIONS = {"gelu": "gelu_pytorch_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}


@auto_docstring(checkpoint="openai-community/openai-gpt")
@strict
class ZooGPTConfig(SavedWithCode, PreTrainedConfig):
    r"""
    The defaults are the published model (Radford et al. 2018, section 4.1).

    The model type is `openai-gpt`, on purpose: the same folder is a stock checkpoint for transformers and a checkpoint
    of this zoo. Of the fields that are not in published files, `lm_loss_weight` changes the loss only; with
    `both_orders`, transformers' own class gives the score of one of the two orders.

    afn (`str`, *optional*, defaults to `"gelu"`):
        The activation: `gelu`, which means the tanh approximation here, `relu`, `silu` or `swish`.
    summary_type (`str`, *optional*, defaults to `"cls_index"`):
        Only `cls_index`: a head reads one token's state. The next four are as in the published files, too.
    summary_use_proj (`bool`, *optional*, defaults to `True`):
        Only `True`: the head is linear.
    summary_activation (`str`, *optional*):
        Only `None`: no activation after it.
    summary_proj_to_labels (`bool`, *optional*, defaults to `True`):
        Only `True`: it is one matrix.
    summary_first_dropout (`float`, *optional*, defaults to 0.1):
        The dropout before every classifier.
    lm_loss_weight (`float`, *optional*, defaults to 0.0):
        The weight of the language modeling loss that `ZooGPTForSequenceClassification` and `ZooGPTForMultipleChoice`
        add to their own (equation 5's lambda, 0.5 in the paper).
    both_orders (`bool`, *optional*, defaults to `False`):
        Whether `ZooGPTForSequenceClassification` adds up the final states of a pair in both orders, the paper's input
        for similarity (section 3.3). It finds the sentences around the token `sep_token_id`.
    sep_token_id (`int`, *optional*):
        The delimiter between two sentences.
    unpad (`bool`, *optional*, defaults to `True`):
        Whether padding is left out of the computation wherever it can be. With `False`, every module sees states of
        shape `(batch_size, sequence_length, ...)`, and the states of padding are returned. The argument of the same
        name of `forward` wins; its `False` still lets the last layer of a classifier compute only the token it reads.

    Raises:
        ValueError: when the width is not a multiple of the heads, for an unknown activation, for the variants of a
            head that the released code never had, and for a negative `lm_loss_weight`.

    Example:

    ```python
    >>> from modeling import ZooGPTConfig, ZooGPTLMHeadModel

    >>> model = ZooGPTLMHeadModel(ZooGPTConfig(n_layer=4, n_embd=256, n_head=4))
    ```"""

    model_type = "openai-gpt"
    keys_to_ignore_at_inference = ["past_key_values"]
    # The published files' names are the fields, so that a saved file has them as well, for readers other than
    # transformers; its own names read and write the same values.
    attribute_map = {
        "max_position_embeddings": "n_positions",
        "hidden_size": "n_embd",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    }
    base_model_fsdp_plan = {
        "tokens_embed": "keep_full_weight",  # the language model's head, too
        "positions_embed": "free_full_weight",
        "h.*": "free_full_weight",
    }

    vocab_size: int = 40478
    n_positions: int = 512
    n_embd: int = 768  # trf-ignore: TRF023 (see attribute_map)
    n_layer: int = 12  # trf-ignore: TRF023
    n_head: int = 12  # trf-ignore: TRF023
    afn: str = "gelu"
    resid_pdrop: float | int = 0.1
    embd_pdrop: float | int = 0.1
    attn_pdrop: float | int = 0.1
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    summary_type: str = "cls_index"
    summary_use_proj: bool = True
    summary_activation: str | None = None
    summary_proj_to_labels: bool = True
    summary_first_dropout: float | int = 0.1
    lm_loss_weight: float | int = 0.0
    both_orders: bool = False
    unpad: bool = True
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    sep_token_id: int | None = None
    tie_word_embeddings: bool = True

    def validate_head_size(self):
        """Every head gets the same number of dimensions."""
        if self.n_embd % self.n_head:
            raise ValueError(
                f"n_embd={self.n_embd} is not a multiple of n_head={self.n_head}; choose them so that each head has "
                "n_embd / n_head dimensions."
            )

    def validate_activation(self):
        if self.afn not in ACTIVATIONS:
            raise ValueError(f"afn={self.afn!r} is none of {', '.join(ACTIVATIONS)}.")

    def validate_summary(self):
        """Refuses heads that are not the paper's, instead of computing something else."""
        fixed = {
            "summary_type": "cls_index",
            "summary_use_proj": True,
            "summary_activation": None,
            "summary_proj_to_labels": True,
        }
        for name, value in fixed.items():
            if getattr(self, name) != value:
                raise ValueError(
                    f"{name}={getattr(self, name)!r}: ZooGPT's heads are linear, on one token, which is "
                    f"{name}={value!r}. Load this checkpoint with transformers' own classes."
                )

    def validate_lm_loss(self):
        if self.lm_loss_weight < 0:
            raise ValueError(f"lm_loss_weight={self.lm_loss_weight} must not be negative; the paper's is 0.5.")

    def save_pretrained(self, save_directory, **kwargs):
        """As `PreTrainedConfig.save_pretrained`, and the zoo's code beside it, so that `trust_remote_code=True` finds
        all classes of the zoo in the folder, whichever of them was saved. Without that, it is a stock checkpoint, and
        `architectures` names the stock class, for servers and converters that look there. The name stays ours where
        the stock library has no such class, and for a classifier with `both_orders`, where it reads one order.

        A process that itself runs on such code may have only some of it; then only that is announced.
        """
        self.auto_map = copy_code(__file__, AUTO_MAP, save_directory)
        if self.architectures:
            self.architectures = [self._stock_name(name) for name in self.architectures]
        super().save_pretrained(save_directory, **kwargs)

    def _stock_name(self, name: str) -> str:
        reads_both_orders = self.both_orders and name == "ZooGPTForSequenceClassification"
        return name if reads_both_orders else STOCK.get(name, name)


announce_names(AUTO_MAP)

__all__ = ["ACTIVATIONS", "AUTO_MAP", "ZooGPTConfig"]
