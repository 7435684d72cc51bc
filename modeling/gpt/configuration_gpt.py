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


# The class that each Auto class finds in a saved folder.
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
# The class of transformers that `architectures` names for a class here, where there is one that reads the folder.
STOCK = {
    "ZooGPTModel": "OpenAIGPTModel",
    "ZooGPTLMHeadModel": "OpenAIGPTLMHeadModel",
    "ZooGPTForSequenceClassification": "OpenAIGPTForSequenceClassification",
}
# Names of activations in published files. "gelu" means the tanh approximation, as in the released code.
ACTIVATIONS = {"gelu": "gelu_pytorch_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}


@auto_docstring(
    custom_intro="""
    The configuration of GPT. The defaults are the published model (Radford et al. 2018, section 4.1),
    [openai-community/openai-gpt](https://huggingface.co/openai-community/openai-gpt).

    The model type is `openai-gpt` on purpose: transformers' GPT classes and those of this zoo read the same
    folder. transformers' classes ignore the fields that published files do not have. Of these, `lm_loss_weight`
    changes only the loss; with `both_orders`, transformers' class scores only one of the two orders.

    Raises `ValueError` if `n_embd` is not a multiple of `n_head`, for an unknown activation, for heads that the
    released code does not have, and for a negative `lm_loss_weight`.
    """
)
@strict
class ZooGPTConfig(SavedWithCode, PreTrainedConfig):
    r"""
    afn (`str`, *optional*, defaults to `"gelu"`):
        The activation: `gelu`, which means the tanh approximation here, `relu`, `silu` or `swish`.
    summary_type (`str`, *optional*, defaults to `"cls_index"`):
        Only `"cls_index"`: a head reads the state of one token. Published files have this field and the next four.
    summary_use_proj (`bool`, *optional*, defaults to `True`):
        Only `True`: a head has a linear layer.
    summary_activation (`str`, *optional*):
        Only `None`: no activation follows that layer.
    summary_proj_to_labels (`bool`, *optional*, defaults to `True`):
        Only `True`: that layer maps to the labels.
    summary_first_dropout (`float`, *optional*, defaults to 0.1):
        The dropout before every classifier.
    lm_loss_weight (`float`, *optional*, defaults to 0.0):
        The weight of the language modeling loss that `ZooGPTForSequenceClassification` and `ZooGPTForMultipleChoice`
        add to the loss of their task (equation 5's lambda, 0.5 in the paper).
    both_orders (`bool`, *optional*, defaults to `False`):
        Whether `ZooGPTForSequenceClassification` reads each pair in both orders and adds the two final states, as the
        paper does for similarity (section 3.3). The token `sep_token_id` separates the two sentences.
    sep_token_id (`int`, *optional*):
        The delimiter between two sentences.
    unpad (`bool`, *optional*, defaults to `True`):
        Whether padding is left out of the computation where possible. With `False`, every module sees states of shape
        `(batch_size, sequence_length, ...)`, and the states of padding are returned. The argument `unpad` of `forward`
        takes precedence; with `False` there, the last layer of a classifier still computes only the token it reads.
    use_cache (`bool`, *optional*, defaults to `True`):
        Whether `generate` keeps keys and values. `forward` keeps them only with its argument `use_cache=True`.

    Example:

    ```python
    >>> from modeling import ZooGPTConfig, ZooGPTLMHeadModel

    >>> model = ZooGPTLMHeadModel(ZooGPTConfig(n_layer=4, n_embd=256, n_head=4))
    ```"""

    model_type = "openai-gpt"
    keys_to_ignore_at_inference = ["cache", "past_key_values"]
    # The fields have the names of published files, so that other programs can read a saved file. transformers' own
    # names for them read and write the same values.
    attribute_map = {
        "max_position_embeddings": "n_positions",
        "hidden_size": "n_embd",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    }
    base_model_fsdp_plan = {
        "tokens_embed": "keep_full_weight",  # also the weight of the language model's head
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
        """Checks that every head has the same number of dimensions."""
        if self.n_embd % self.n_head:
            raise ValueError(
                f"n_embd={self.n_embd} is not a multiple of n_head={self.n_head}; choose them so that each head has "
                "n_embd / n_head dimensions."
            )

    def validate_activation(self):
        if self.afn not in ACTIVATIONS:
            raise ValueError(f"afn={self.afn!r} is none of {', '.join(ACTIVATIONS)}.")

    def validate_summary(self):
        """Raises ValueError for heads that differ from the paper's, rather than ignoring the difference."""
        fixed = {
            "summary_type": "cls_index",
            "summary_use_proj": True,
            "summary_activation": None,
            "summary_proj_to_labels": True,
        }
        for name, value in fixed.items():
            if getattr(self, name) != value:
                raise ValueError(
                    f"{name}={getattr(self, name)!r}: ZooGPT's heads are linear layers on one token, which is "
                    f"{name}={value!r}. Load this checkpoint with transformers' own classes."
                )

    def validate_lm_loss(self):
        if self.lm_loss_weight < 0:
            raise ValueError(f"lm_loss_weight={self.lm_loss_weight} must not be negative; the paper's is 0.5.")

    def save_pretrained(self, save_directory, **kwargs):
        """As `PreTrainedConfig.save_pretrained`, and also copies the zoo's code into the folder.

        With `trust_remote_code=True`, the folder then offers all GPT classes of the zoo, whichever of them was saved.
        Without it, transformers' own classes read the folder; `architectures` names them, for servers and converters.
        It names the zoo's class where transformers has no equivalent: for some heads, and with `both_orders`.

        In a process that runs on code from such a folder, some files may be missing; then `auto_map` names only the
        classes whose files are there.
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
