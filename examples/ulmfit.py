"""ULMFiT: a language model becomes a classifier in three steps, with few labels.

    python examples/ulmfit.py --model_name_or_path checkpoints/elmo-books --data_dir glue --output_dir runs/ulmfit \\
        --without none lm discriminative slanted unfreezing pretraining

It writes out Howard and Ruder, Universal Language Model Fine-tuning for Text Classification, ACL 2018 (arXiv
1801.06146), and names its sections and equations. The language model is a biLM's forward direction, which has read
general text (step 1, section 3.1). It goes on with the sentences of SST-2, without their labels (step 2, section 3.2),
and becomes a classifier of them with --max_train_samples labels (step 3, section 3.3).

Shapes: B sentences of T words, P states of the forward direction.

OUTPUT_DIR receives metrics.json with the accuracy on dev, of each variant. The same flags give the same file on a CPU.

What differs from the article: its language model is an AWD-LSTM with the dropouts of that. Sentences are short, so
gradients go back to their beginning.
"""

import argparse
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path

import torch
from accelerate import Accelerator, PartialState
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from elmo_gpt_bert.tasks.glue import EVERY_TASK, read_folder
from elmo_gpt_bert.training.command_line import run_command
from elmo_gpt_bert.training.errors import ExistingFileError, InputError, as_user_errors
from elmo_gpt_bert.training.files import make_folder, write_json
from modeling import ElmoForPreTraining, ElmoTokenizer
from modeling.elmo.modeling_elmo_layers import max_pool, mean_pool


DECAY = 2.6  # of the learning rate, from a layer to the one below it (section 3.2)
CUT, RATIO = 0.1, 32  # cut_frac and ratio of equation 3
LM_RATE, RATE, BETAS = 2e-3, 5e-3, (0.7, 0.99)  # eta_max of steps 2 and 3, and Adam's averages (section 4.1)
BATCH, HIDDEN, DROPOUT = 32, 50, 0.1
VARIANTS = ("none", "lm", "discriminative", "slanted", "unfreezing", "pretraining")

Labelled = list[tuple[list[str], int]]  # the words of each sentence, and its class
Layers = list[list[nn.Parameter]]  # the trained weights of each layer, the top layer first


class Classifier(nn.Module):
    """Two blocks of batch normalization, dropout and a linear layer on the pooled states (section 3.3)."""

    def __init__(self, lm: ElmoForPreTraining, classes: int):
        super().__init__()
        self.lm, self.size = lm, lm.config.projection_size
        self.blocks = nn.Sequential(
            *(nn.BatchNorm1d(3 * self.size), nn.Dropout(DROPOUT), nn.Linear(3 * self.size, HIDDEN), nn.ReLU()),
            *(nn.BatchNorm1d(HIDDEN), nn.Dropout(DROPOUT), nn.Linear(HIDDEN, classes)),
        )

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **kwargs) -> torch.Tensor:
        """(B, T, characters) -> the scores of the classes, from h_c = [h_T, maxpool(H), meanpool(H)]."""
        output = self.lm.elmo(input_ids, attention_mask, output_hidden_states=True)
        states, mask = output.hidden_states[-1][..., : self.size], attention_mask.bool()  # (B, T, P), forward
        last = states[torch.arange(len(states)), mask.sum(1) - 1]
        return self.blocks(torch.cat([last, max_pool(states, mask), mean_pool(states, mask)], -1))


def layers_of(lm: ElmoForPreTraining, top: nn.Module) -> Layers:
    """What is trained of the forward direction, below the `top`."""
    lstms = [layer.forward_lstm for layer in reversed(lm.elmo.layers)]
    return [[*part.parameters()] for part in (top, *lstms, lm.elmo.token_encoder)]


def slanted(t: int, total: int) -> float:
    """Equation 3, the learning rate of update t as a share of eta_max: a short rise, and a long fall."""
    cut = max(int(total * CUT), 1)
    p = t / cut if t < cut else max(1 - (t - cut) / (cut * (1 / CUT - 1)), 0)
    return (1 + p * (RATIO - 1)) / RATIO


def fit(
    layers: Layers, loss: Callable[[Sequence[int]], torch.Tensor], rows: int, epochs: int, rate: float, without: str
) -> None:
    """Trains the layers on the numbers of the rows of each batch.

    Discriminative fine-tuning gives each layer the learning rate of the one above it, divided by 2.6 (equation 2).
    Gradual unfreezing begins with the top layer, and adds the next one in each epoch (section 3.3).
    """
    accelerator, total, t = Accelerator(), epochs * -(-rows // BATCH), 0
    optimizer = accelerator.prepare(torch.optim.Adam([{"params": layer} for layer in layers], rate, BETAS))
    for epoch in range(epochs):
        values = []
        for depth, layer in enumerate(layers):
            for parameter in layer:
                parameter.requires_grad_(without == "unfreezing" or depth <= epoch)
        for batch in torch.randperm(rows).split(BATCH):
            for depth, group in enumerate(optimizer.param_groups):
                group["lr"] = rate * (1 if without == "slanted" else slanted(t, total))
                group["lr"] /= 1 if without == "discriminative" else DECAY**depth
            if len(batch) > 1:  # one sentence alone cannot be normalized
                optimizer.zero_grad()
                value = loss(batch.tolist())
                accelerator.backward(value)
                optimizer.step()
                values.append(value.item())
            t += 1
        print(f"epoch {epoch + 1} of {epochs}: the loss is {sum(values) / len(values):.4f}")


def inputs_of(tokenizer: ElmoTokenizer, sentences: Sequence[list[str]]) -> dict[str, torch.Tensor]:
    batch = tokenizer([*sentences], is_split_into_words=True, padding=True, return_tensors="pt")
    return {name: batch[name].to(PartialState().device) for name in ("input_ids", "attention_mask")}


def adapt(lm: ElmoForPreTraining, tokenizer: ElmoTokenizer, texts: list, epochs: int) -> ElmoForPreTraining:
    """Step 2: the language model goes on with the sentences of the task. All layers are trained from the beginning."""
    lm = deepcopy(lm).train()

    def loss(rows: Sequence[int]) -> torch.Tensor:
        sentences = [texts[row] for row in rows]
        labels = [torch.tensor(tokenizer.word_targets(sentence)) for sentence in sentences]
        labels = pad_sequence(labels, batch_first=True, padding_value=-100).to(lm.device)
        return lm(**inputs_of(tokenizer, sentences), labels=labels).direction_losses[0]  # of the forward direction

    fit(layers_of(lm, lm.lm_head), loss, len(texts), epochs, LM_RATE, "unfreezing")
    return lm


def classify(
    lm: ElmoForPreTraining, tokenizer: ElmoTokenizer, train: Labelled, dev: Labelled, epochs: int, without: str
) -> float:
    """Step 3: the accuracy on `dev` of a classifier that is trained on other labelled sentences."""
    model = Classifier(deepcopy(lm), 2).to(PartialState().device).train()

    def loss(rows: Sequence[int]) -> torch.Tensor:
        sentences, labels = zip(*(train[row] for row in rows), strict=True)
        scores = model(**inputs_of(tokenizer, sentences))
        return functional.cross_entropy(scores, torch.tensor(labels, device=scores.device))

    fit(layers_of(model.lm, model.blocks), loss, len(train), epochs, RATE, without)
    model.eval()
    right = 0
    for begin in range(0, len(dev), BATCH):
        sentences, labels = zip(*dev[begin : begin + BATCH], strict=True)
        with torch.no_grad():
            guesses = model(**inputs_of(tokenizer, sentences)).argmax(1)
        right += (guesses.cpu() == torch.tensor(labels)).sum().item()
    return right / len(dev)


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--model_name_or_path", required=True, help="folder of a biLM, or its name on the Hub")
    parser.add_argument("--data_dir", type=Path, required=True, help="the folder of SST-2, or of GLUE")
    parser.add_argument("--max_train_samples", type=int, default=500, help="labelled sentences (default: 500)")
    parser.add_argument("--max_lm_samples", type=int, default=10000, help="sentences of step 2 (default: 10000)")
    parser.add_argument("--num_lm_epochs", type=int, default=1, help="of step 2 (default: 1)")
    parser.add_argument("--num_train_epochs", type=int, default=10, help="of step 3 (default: 10)")
    parser.add_argument("--without", nargs="+", choices=VARIANTS, default=["none"], help="variants (default: none)")
    parser.add_argument("--seed", type=int, default=42, help="of all random choices (default: 42)")
    parser.add_argument("--output_dir", type=Path, required=True, help="the folder to write")
    args = parser.parse_args(argv)
    if (args.output_dir / "metrics.json").exists():
        raise ExistingFileError(f"--output_dir {args.output_dir} has results: choose another")
    for flag, least in (
        ("max_train_samples", 2),
        ("max_lm_samples", 2),
        ("num_lm_epochs", 1),
        ("num_train_epochs", 1),
    ):
        if getattr(args, flag) < least:
            raise InputError(f"--{flag} must be {least} or more, not {getattr(args, flag)}")
    return args


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Carries out what `argv`, by default the command line, asks for; returns the results."""
    args, task = parse(argv), EVERY_TASK["sst2"]
    splits = read_folder(args.data_dir, task, ["train", "validation"])
    train, dev = (
        [(row["text"].split(), task.classes.index(row["label"])) for row in splits[split] if row["text"].strip()]
        for split in ("train", "validation")
    )
    with as_user_errors(f"--model_name_or_path {args.model_name_or_path} is no biLM: ", TypeError, AttributeError):
        tokenizer = ElmoTokenizer.from_pretrained(args.model_name_or_path)
        tokenizer.word_targets([])
        general = ElmoForPreTraining.from_pretrained(args.model_name_or_path).to(PartialState().device)
    make_folder(args.output_dir)
    torch.manual_seed(args.seed)
    train = [train[place] for place in torch.randperm(len(train))]
    labelled, texts = train[: args.max_train_samples], [words for words, _ in train[: args.max_lm_samples]]
    lms = {"lm": general, "pretraining": ElmoForPreTraining(general.config)}
    adapted = None
    if {*args.without} - {*lms}:
        adapted = adapt(general, tokenizer, texts, args.num_lm_epochs)
    results = {"train_samples": len(labelled), "lm_samples": len(texts), "eval_samples": len(dev)}
    for name in args.without:
        torch.manual_seed(args.seed)
        accuracy = classify(lms.get(name, adapted), tokenizer, labelled, dev, args.num_train_epochs, name)
        results[f"{name}_accuracy"] = accuracy
        print(f"without {name}: accuracy {100 * accuracy:.1f}")
    write_json(args.output_dir / "metrics.json", results)
    return results


if __name__ == "__main__":
    run_command(main)
