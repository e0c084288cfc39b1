"""Small tokenizers of each family, trained on the spot."""

from __future__ import annotations

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

from octavo.cluster.text.tokens import Tokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog. Hello world, how are you today?",
    "naïve café, 你好世界, こんにちは, 👩‍👩‍👧 and é as two characters",
] * 4
SPECIAL = ["<s>", "</s>"]


def byte_level() -> tokenizers.Tokenizer:
    """GPT-2's kind: every text round-trips."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIAL,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<tool call>", normalized=False)])
    return tokenizer


def byte_fallback() -> tokenizers.Tokenizer:
    """Llama 2's kind: `▁` for spaces, byte tokens for what the vocabulary lacks."""
    pieces = ["▁", "▁The", "▁quick", "▁Hello", "▁world", "e", "l", "o", "h", "r", "d", "é", "▁▁"]
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for piece in [f"<0x{byte:02X}>" for byte in range(256)] + pieces:
        vocabulary[piece] = len(vocabulary)
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def word_piece() -> tokenizers.Tokenizer:
    """BERT's kind: spaces are not in the tokens but between them."""
    words = ["[UNK]", "the", "quick", "fox", "##es", "jump", "##s", "##ed", "over"]
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return tokenizer


BYTE_LEVEL = Tokenizer(byte_level(), eos_ids=[1])
BYTE_FALLBACK = Tokenizer(byte_fallback(), eos_ids=[2])
WORD_PIECE = Tokenizer(word_piece())
