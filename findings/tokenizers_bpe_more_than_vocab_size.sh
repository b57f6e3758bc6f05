#!/usr/bin/env bash
# BpeTrainer returns more tokens than vocab_size if the text has more characters.
#
# Version:   tokenizers 0.23.3
# Behaviour: Every character of the training text becomes a token, whatever vocab_size says, and
#            nothing is said. For Chinese or Japanese text, or text with rare symbols, a model whose
#            embedding has vocab_size rows then meets ids beyond it. limit_alphabet cuts the
#            characters; WordPieceTrainer does the same.
# Source:    BpeTrainer.compute_alphabet in tokenizers/src/models/bpe/trainer.rs; its documentation
#            calls vocab_size the size of the final vocabulary with its alphabet.
# Seen:      asked for 100: BPE 500 tokens, largest id 499; with limit_alphabet=90 100 tokens.
set -euo pipefail

packages="tokenizers==0.23.3"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install -q --disable-pip-version-check $packages
cat > finding.py <<'EOF'
from tokenizers import Tokenizer, models, trainers

# Five hundred Chinese characters, ten times each.
LINES = ["".join(chr(0x4E00 + number) for number in range(500))] * 10


def trained(model, trainer):
    tokenizer = Tokenizer(model)
    tokenizer.train_from_iterator(LINES, trainer)
    return tokenizer


bpe = trained(models.BPE(), trainers.BpeTrainer(vocab_size=100, show_progress=False))
limited = trained(
    models.BPE(),
    trainers.BpeTrainer(vocab_size=100, limit_alphabet=90, show_progress=False),
)
word_piece = trained(
    models.WordPiece(unk_token="[UNK]"),
    trainers.WordPieceTrainer(
        vocab_size=100, special_tokens=["[UNK]"], show_progress=False
    ),
)
seen = {
    "BPE": bpe.get_vocab_size(),
    "BPE, limit_alphabet=90": limited.get_vocab_size(),
    "WordPiece": word_piece.get_vocab_size(),
}
largest = max(bpe.encode(LINES[0]).ids)
print("asked for 100 tokens:", seen)
print("largest id of BPE:", largest)

assert seen["BPE"] == 500 and largest == 499
assert seen["BPE, limit_alphabet=90"] == 100
assert seen["WordPiece"] >= 500
EOF
venv/bin/python finding.py
