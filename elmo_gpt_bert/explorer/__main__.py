"""A page in the browser: one sentence, read by ELMo, GPT and BERT side by side.

    zoo-app          # the models of checkpoints/
    zoo-app --bert google-bert/bert-base-uncased --ner runs/bert/conll2003
    zoo-app --index_file held_out.txt --server_port 7861

The page shows the nearest neighbours of a word in its context, layer by layer; how probable each word is in its place,
and which of two sentences each model prefers; the entities that a fine-tuned model finds; and the attention of GPT and
BERT. It needs the extra "app": pip install -c constraints.txt -e ".[app]"

The page is only for this computer, unless --server_name is another address. Then anyone who reaches the address can
use it, but only with the models and files that the command line names. Nothing is sent to other addresses: there are
no statistics, no public link and no fonts from the network. Only a model of the Hub is downloaded, once.
"""

import argparse
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmo_gpt_bert.analysis.frame import set_up_libraries
from elmo_gpt_bert.explorer.panels import Panels
from elmo_gpt_bert.training.command_line import program, run_command
from elmo_gpt_bert.training.errors import InputError, LaunchError, MissingFileError, PackageError


if TYPE_CHECKING:
    import gradio


LOCAL = ("127.0.0.1", "localhost", "::1")
# The browser fetches nothing from other addresses, whatever the page or Gradio asks for.
POLICY = b"default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:"

SENTENCE = "They sat on the bank and watched the stream."
WORD = 5  # bank
TAGGER = "checkpoints/bert-books-wnut17"
SECOND = "They sat on the bank and watches the stream."
NAMES = "In 1858 Thomas Hale of Leeds sold his ships to the Bay Company."


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(program(), description=__doc__.splitlines()[0])
    for family in ("elmo", "gpt", "bert"):
        column = f"model folder or Hub id of this column; default: checkpoints/{family}-books"
        parser.add_argument(f"--{family}", default=f"checkpoints/{family}-books", metavar="MODEL", help=column)
    tagger = TAGGER if Path(TAGGER).is_dir() else ""
    trained = f"folder that run_ner.py trained; default: {TAGGER}, where it is"
    parser.add_argument("--ner", default=tagger, metavar="MODEL", help=trained)
    index = "text file of sentences in which neighbours are looked for; default: 351 sentences of this package"
    parser.add_argument("--index_file", default="", metavar="FILE", help=index)
    parser.add_argument("--server_name", default=LOCAL[0], metavar="ADDRESS", help="default: this computer only")
    port = "default: the first free one from 7860 on"
    parser.add_argument("--server_port", type=int, metavar="PORT", help=port)
    args = parser.parse_args(argv)
    for family in ("elmo", "gpt", "bert"):
        name = getattr(args, family)
        if name == parser.get_default(family) and not Path(name).is_dir():
            remedy = f"run this in the root of the repository, or name a model with --{family}"
            raise MissingFileError(f"{name}: no such folder; {remedy}")
    if args.index_file and not Path(args.index_file).is_file():
        raise MissingFileError(f"--index_file {args.index_file}: no such file")
    if args.server_port is not None and not 0 < args.server_port < 65536:
        raise InputError(f"--server_port must be between 1 and 65535, not {args.server_port}")
    return args


def main(argv: list[str] | None = None) -> None:
    """Serves the page until Ctrl-C."""
    args = parse(argv)
    page = start(args)
    print(f"{page.local_url} shows the page; Ctrl-C ends it", flush=True)
    page.block_thread()


def start(args: argparse.Namespace) -> "gradio.Blocks":
    """Builds the page and serves it in threads of their own; `close` ends them."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before the import
    try:
        import gradio
        from starlette.middleware import Middleware
    except ImportError as error:
        raise PackageError(f'the page needs gradio ({error}): pip install "gradio>=6.31,<7"') from error
    set_up_libraries()
    named = frozenset({args.ner, args.index_file})
    models = {"ELMo": args.elmo, "GPT": args.gpt, "BERT": args.bert}
    page = build(Panels(models, None if args.server_name in LOCAL else named), args)
    try:
        page.launch(
            server_name=args.server_name,
            server_port=args.server_port,
            share=False,
            quiet=True,
            prevent_thread_lock=True,
            ssr_mode=False,
            footer_links=[],
            theme=gradio.themes.Soft(font=["Segoe UI", "Helvetica", "Arial", "sans-serif"], font_mono=["monospace"]),
            css=Path(__file__).with_name("style.css").read_text(encoding="utf-8"),
            app_kwargs={"middleware": [Middleware(LocalOnly)]},
        )
    except OSError as error:
        address = f"{args.server_name}:{args.server_port or 'any port from 7860 on'}"
        raise LaunchError(
            f"nothing can be served at {address}: give another --server_port or --server_name"
        ) from error
    return page


class LocalOnly:
    """Sends `POLICY` with every answer of the server."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_with_policy(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"content-security-policy", POLICY)]}
            await send(message)

        await self.app(scope, receive, send_with_policy)


# The page


def build(panels: Panels, args: argparse.Namespace) -> "gradio.Blocks":
    import gradio

    with gradio.Blocks(title="ELMo, GPT and BERT", analytics_enabled=False, fill_width=True) as page:
        gradio.Markdown("# ELMo, GPT and BERT\nOne sentence, read by three models.")
        sentence = gradio.Textbox(SENTENCE, label="Sentence", max_lines=4, elem_id="sentence")
        with gradio.Tab("Context"):  # short names, so that all tabs fit on a phone
            add_neighbours(panels, sentence, args.index_file, page)
        with gradio.Tab("Probability") as tab:
            add_scores(panels, sentence, tab)
        with gradio.Tab("Entities") as tab:
            add_entities(panels, args.ner, tab)
        with gradio.Tab("Attention") as tab:
            add_attention(panels, sentence, tab)
    return page


def add_result(
    label: str, button_name: str, name: str, draw: Callable[..., str], inputs: list, events: tuple = ()
) -> None:
    """A button, and below it what `draw` shows of the inputs after a click or another event.

    An event during a computation starts another one afterwards, so that what is shown is of the last inputs.
    """
    import gradio

    button = gradio.Button(label, variant="primary", elem_id=button_name)
    shown = gradio.HTML(elem_id=name)
    gradio.on([button.click, *events], draw, inputs, shown, trigger_mode="always_last", api_visibility="private")


def add_neighbours(panels: Panels, sentence: "gradio.Textbox", index_file: str, page: "gradio.Blocks") -> None:
    import gradio

    words = panels.words(SENTENCE)
    number = gradio.Radio(words, value=WORD, label="Word", elem_id="word")
    with gradio.Row(equal_height=True):
        default = "351 sentences of this package"
        label = "Index: a text file of sentences"
        index = gradio.Textbox(index_file, label=label, placeholder=default, scale=4, max_lines=1, elem_id="index")
    same_word = gradio.Checkbox(label="Only other occurrences of this word", elem_id="same-word")
    inputs = [sentence, number, same_word, index]
    events = (page.load, number.input, same_word.input)
    add_result("Find neighbours", "find", "neighbours", panels.neighbours, inputs, events)

    def choose(text: str, chosen: int | None) -> "gradio.Radio":
        choices = panels.words(text)
        return gradio.Radio(choices, value=chosen if chosen and chosen <= len(choices) else None)

    quiet = {"show_progress": "hidden", "api_visibility": "private"}
    sentence.change(choose, [sentence, number], number, trigger_mode="always_last", **quiet)


def add_scores(panels: Panels, sentence: "gradio.Textbox", tab: "gradio.Tab") -> None:
    import gradio

    label = "Second sentence, to compare with (may be empty)"
    second = gradio.Textbox(SECOND, label=label, max_lines=4, elem_id="second")
    add_result("Compute probabilities", "score", "scores", panels.scores, [sentence, second], (tab.select,))


def add_entities(panels: Panels, name: str, tab: "gradio.Tab") -> None:
    import gradio

    sentence = gradio.Textbox(NAMES, label="Sentence with names", max_lines=4, elem_id="names")
    folder = gradio.Textbox(name, label="Folder that run_ner.py trained", max_lines=1, elem_id="ner")
    events = (tab.select,) if name else ()
    add_result("Find entities", "tag", "entities", panels.entities, [sentence, folder], events)


def add_attention(panels: Panels, sentence: "gradio.Textbox", tab: "gradio.Tab") -> None:
    import gradio

    with_ends = gradio.Checkbox(label="Also show [CLS] and [SEP]", elem_id="with-ends")
    with gradio.Row():
        with gradio.Column(min_width=340):
            gradio.HTML(panels.no_attention())
        for family in ("GPT", "BERT"):
            layers, heads = panels.attention_sizes(family)
            with gradio.Column(min_width=340):
                name = family.lower()
                layer = gradio.Slider(1, layers, layers, step=1, label=f"{family}: layer", elem_id=f"{name}-layer")
                all_heads = f"{family}: head (0: the mean of all heads)"
                head = gradio.Slider(0, heads, 0, step=1, label=all_heads, elem_id=f"{name}-head")
                label, draw = f"Show {family}'s attention", partial(panels.attention, family)
                events = (tab.select, layer.release, head.release, with_ends.input)
                inputs = [sentence, layer, head, with_ends]
                add_result(label, f"{name}-attend", f"{name}-attention", draw, inputs, events)


def command() -> None:
    run_command(main)


if __name__ == "__main__":
    command()
