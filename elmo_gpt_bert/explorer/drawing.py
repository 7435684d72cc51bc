"""HTML of what the other modules compute. All text of users and models is escaped.

style.css has the looks. Text, borders and backgrounds have the colours of the page's theme, so they are right in the
light and the dark.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from types import MappingProxyType

from elmo_gpt_bert.explorer.entities import Entity, TaggedWord
from elmo_gpt_bert.explorer.language_models import Attention, Span
from elmo_gpt_bert.explorer.neighbours import Neighbour
from elmo_gpt_bert.explorer.surprisal import ScoredSentence, ScoredWord


HUES = (210, 28, 145, 280, 340, 60, 180)  # of types of entities, one after the other
SCALE = 16.0  # bits of a full bar, if no bar is longer


# Frames


def columns(cards: Iterable[str]) -> str:
    return f'<div class="ex-columns">{"".join(cards)}</div>'


def card(title: str, source: str, content: str) -> str:
    """A column with the name of its model."""
    heading = f'<h3>{escape(title)}</h3><p class="ex-source">{escape(source)}</p>'
    return f'<section class="ex-card">{heading}{content}</section>'


def error(message: str) -> str:
    return f'<p class="ex-error" role="alert">{escape(message)}</p>'


def note(text: str) -> str:
    return f'<p class="ex-note">{escape(text)}</p>'


# Neighbours


def draw_neighbours(
    family: str, layers: Mapping[str, Sequence[Neighbour]], accuracies: Mapping[str, float] = MappingProxyType({})
) -> str:
    """The list of one layer at a time, whose number is the cosine.

    With `accuracies` of senses, each layer has a bar, and the best one is open; otherwise the last one is.
    """
    senses = sorted({each.sense for neighbours in layers.values() for each in neighbours if each.sense})
    opened = max(layers, key=lambda name: (accuracies.get(name, 0.0), list(layers).index(name)))
    parts = [note("How often a layer tells the senses of the word, in the labelled sentences:")] if accuracies else []
    for name, neighbours in layers.items():
        items = "".join(_neighbour(each, senses) for each in neighbours)
        items = items or note("The index has no other occurrence of this word.")
        parts.append(
            f'<details class="ex-layer" name="ex-layers-{escape(family)}"{" open" * (name == opened)}>'
            f'<summary><span class="ex-bar">{_share(accuracies.get(name))}<span class="word">{escape(name)}</span>'
            f'</span></summary><ul class="ex-list">{items}</ul></details>'
        )
    return "".join(parts)


def _share(accuracy: float | None) -> str:
    """A bar of that length, and its percentage."""
    if accuracy is None:
        return ""
    return f'<i class="one" style="width: {100 * accuracy:.1f}%"></i><span class="number">{accuracy:.0%}</span>'


def _neighbour(neighbour: Neighbour, senses: Sequence[str]) -> str:
    if neighbour.count > 1:
        context = f"<b>{escape(neighbour.word)}</b> in {neighbour.count} places, all equally near"
    else:
        context = f"{escape(neighbour.left)} <b>{escape(neighbour.word)}</b> {escape(neighbour.right)}"
    if neighbour.sense:
        color = f"hsla({HUES[senses.index(neighbour.sense) % len(HUES)]}, 75%, 50%, .3)"
        context += f' <small class="ex-sense" style="background: {color}">{escape(neighbour.sense)}</small>'
    return f'<li><span class="context">{context}</span><span class="number">{neighbour.cosine:.2f}</span></li>'


# Surprisal


def draw_scores(sentences: Sequence[ScoredSentence]) -> str:
    """The bars of one sentence or of two side by side, which have one scale; of two, also which one is preferred."""
    longest = max(sum(word.bits) for sentence in sentences for word in sentence.words)
    longest = max(SCALE, longest, *(edge for sentence in sentences for edge in sentence.edges))
    rows = 1 + max(len(each.words) + len(each.edges) for each in sentences)
    parts = [_scored_sentence(each, longest, rows) for each in sentences]
    text = f'<p class="ex-verdict">{escape(describe_verdict(*sentences))}</p>' if len(sentences) == 2 else ""
    has_directions = any(sentence.edges for sentence in sentences)
    return f'{text}{_key() if has_directions else ""}<div class="ex-pair">{"".join(parts)}</div>'


def describe_verdict(first: ScoredSentence, second: ScoredSentence) -> str:
    difference = first.bits - second.bits
    if not difference:
        return "Prefers neither: both are equally probable."
    return f"Prefers the {'second' if difference > 0 else 'first'} sentence, by {abs(difference):.1f} bits."


def _key() -> str:
    keys = (("rgba(59, 130, 246, .6)", "words before it"), ("rgba(234, 136, 10, .6)", "words after it"))
    spans = "".join(f'<span class="ex-key" style="background: {color}"></span>{name}' for color, name in keys)
    return f'<p class="ex-note">Bits given{spans}</p>'


def _scored_sentence(sentence: ScoredSentence, longest: float, rows: int) -> str:
    """Its bars, in rows that it shares with the other sentence."""
    bars = [_bar(word, longest) for word in sentence.words]
    for name, edge in zip(("(end)", "(beginning)"), sentence.edges, strict=False):
        bars.append(_bar(ScoredWord(name, [], [edge]), longest, number=name == "(beginning)"))
    total = f"<h4>{sentence.bits:.1f} bits in all</h4>"
    return f'<div class="ex-bars" style="grid-row: span {rows}">{total}{"".join(bars)}</div>'


def _bar(word: ScoredWord, longest: float, number: int = 0) -> str:
    """A row with the word, its bits and its probability, on a bar; `number` is the colour of the first part."""
    parts, left = [], 0.0
    for place, bits in enumerate(word.bits, start=number):
        width = max(bits, 0) / longest * 100
        name = ("one", "two")[place]
        parts.append(f'<i class="{name}" style="left: {left:.2f}%; width: {width:.2f}%"></i>')
        left += width
    bits = f"{sum(word.bits):.1f}" if word.bits else "–"
    share = percent(word.probability) if word.probability is not None else ""
    return (
        f'<div class="ex-bar" title="{escape(describe_word(word))}">{"".join(parts)}'
        f'<span class="word">{escape(word.word)}{_marks(word)}</span>'
        f'<span class="number">{bits}</span><span class="share">{escape(share)}</span></div>'
    )


def _marks(word: ScoredWord) -> str:
    marks = [f"{len(word.pieces)} pieces"] if len(word.pieces) > 1 else []
    marks += ["unknown"] * word.is_unknown
    return f' <small class="ex-note">({", ".join(marks)})</small>' if marks else ""


def describe_word(word: ScoredWord) -> str:
    """What a bar says when the mouse is over it."""
    texts = []
    if len(word.bits) == 2:
        texts.append(f"{word.bits[0]:.2f} bits given the words before it, {word.bits[1]:.2f} given those after it")
    elif word.bits:
        texts.append(f"{word.bits[0]:.2f} bits")
    elif not word.pieces:
        texts.append("not predicted: the model has no token for it")
    else:
        texts.append("not predicted: nothing is before it")
    if len(word.pieces) > 1:
        texts.append(f"pieces: {' '.join(word.pieces)}")
    if word.is_partial:
        texts.append("its first piece is not predicted: nothing is before it")
    if word.is_unknown:
        texts.append("not in the model's vocabulary: the probability is that of all unknown words")
    return "; ".join(texts)


def percent(probability: float) -> str:
    """With two significant digits, down to a hundredth of a percent."""
    return f"{100 * probability:.2g}%" if 1e-4 <= probability < 0.995 else ("<0.01%" if probability < 0.5 else "100%")


# Entities


def draw_entities(sentence: str, words: Sequence[TaggedWord], entities: Sequence[Entity]) -> str:
    """The sentence with its entities in colours, and a table with the best tags of each word."""
    types = sorted({entity.type for entity in entities})
    marks = [
        (entity.span, HUES[types.index(entity.type) % len(HUES)], f"{entity.type} {entity.score:.0%}")
        for entity in entities
    ]
    found = note("No entity was found.") if not entities else ""
    rows = [
        [sentence[slice(*word.span)], ", ".join(f"{tag} {percent(score)}" for tag, score in word.best) or "no token"]
        for word in words
    ]
    return f"{highlight(sentence, marks)}{found}{table(['Word', 'Best tags'], rows)}"


def highlight(text: str, marks: Sequence[tuple[Span, int, str]]) -> str:
    """The text with marked spans, which do not overlap: (span, hue, label)."""
    parts, end = [], 0
    for (begin, stop), hue, label in sorted(marks):
        parts.append(escape(text[end:begin]))
        color = f"hsla({hue}, 75%, 50%, .3)"
        parts.append(
            f'<mark style="background: {color}">{escape(text[begin:stop])}<small>{escape(label)}</small></mark>'
        )
        end = stop
    parts.append(escape(text[end:]))
    return f'<div class="ex-text">{"".join(parts)}</div>'


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<table class="ex-table"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


# Attention


def draw_attention(attention: Attention) -> str:
    """A square for each pair of tokens: the row attends to the column. The strongest has the full colour."""
    left_out = note(f"[CLS] and [SEP] get {attention.share:.0%} of the attention, and are left out.")
    strongest = float(attention.weights.max(initial=1e-9))
    head = "".join(f"<th>{escape(token)}</th>" for token in attention.tokens)
    rows = []
    for token, weights in zip(attention.tokens, attention.weights, strict=True):
        shades = [f"rgba(59, 130, 246, {weight / strongest:.3f})" for weight in weights.tolist()]
        cells = "".join(
            f'<td style="background: {shade}" title="{escape(f"{token} → {other}")}: {weight:.1%}"></td>'
            for other, shade, weight in zip(attention.tokens, shades, weights.tolist(), strict=True)
        )
        rows.append(f"<tr><th>{escape(token)}</th>{cells}</tr>")
    body = f"<thead><tr><th></th>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'{left_out if attention.share else ""}<div class="ex-scroll"><table class="ex-map">{body}</table></div>'
