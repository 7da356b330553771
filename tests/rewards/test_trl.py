"""Two GRPO updates of TRL with a random model on the CPU: the rewards vary, and the parameters follow them."""

import pathlib
import re

import pytest
from reasoning_records import make_record

torch = pytest.importorskip("torch")
trl = pytest.importorskip("trl")

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "other_libraries.md"
WORDS = ("<pad>", "<eos>", "Yes", "No", "mass", "lung", "?")


def make_model():
    """A GPT-2 of two layers, and a tokenizer of whole words, those of `WORDS`; the last stands for all others."""
    import tokenizers
    import transformers

    numbers = {word: number for number, word in enumerate(WORDS)}
    own = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token=WORDS[-1]))
    own.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokens = {"pad_token": WORDS[0], "eos_token": WORDS[1]}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=own, **tokens)
    torch.manual_seed(0)
    sizes = {"vocab_size": len(WORDS), "n_positions": 128, "n_embd": 16, "n_layer": 2, "n_head": 2}
    ends = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **ends)), tokenizer


OPTIONS = {
    "use_cpu": True, "max_steps": 2, "per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 3,
    "learning_rate": 0.01, "logging_steps": 1, "report_to": "none", "save_strategy": "no", "disable_tqdm": True,
}  # fmt: skip


@pytest.mark.slow
def test_two_updates_of_the_documented_trainer_with_rewards_that_vary(tmp_path):
    model, tokenizer = make_model()
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    records = [make_record(id=str(number), answer=("Yes", "No")[number % 2]) for number in range(8)]
    (block,) = re.findall(r"^```python\n(from datasets.*?)```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    names = {"model": model, "tokenizer": tokenizer, "records": records}
    names["options"] = {"output_dir": str(tmp_path), **OPTIONS}
    exec(compile(block, PAGE.name, "exec"), names)  # noqa: S102
    logs = [log for log in names["trainer"].state.log_history if "reward" in log]
    assert len(logs) == 2
    assert all(log["rewards/gemex/std"] > 0 and log["grad_norm"] > 0 for log in logs)
    for log in logs:  # TRL's mean of our totals is the sum of the parts that we log
        assert log["reward"] == pytest.approx(log["gemex/answer"] + log["gemex/grounding"], abs=1e-6)
        assert 0 < log["gemex/answer"] < 1
    assert all((value != before[name]).any() for name, value in model.named_parameters())
