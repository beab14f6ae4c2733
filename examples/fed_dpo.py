"""Three teams align one language model with their users' preferences; no text leaves a team."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from cameraready.methods.fed_dpo import FederatedDPO, PreferenceClient

prompts = ["is it open", "can i pay", "where is it", "who can help", "is it late", "can i stay"]
politely, bluntly = (
    [" yes please come in", " thank you please ask us", " of course thank you"],
    [" no", " go", " ask them"],
)
pairs = [
    {"prompt": prompt, "chosen": kind, "rejected": rude}
    for prompt in prompts
    for kind, rude in zip(politely, bluntly, strict=True)
]

words = {word for pair in pairs for text in pair.values() for word in text.split()}
inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(["<pad>", "<eos>", *sorted(words)])}))
inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>")
torch.manual_seed(0)
config = GPT2Config(
    vocab_size=len(tokenizer), n_embd=32, n_layer=2, n_head=2, n_positions=32, bos_token_id=1, eos_token_id=1
)
model = GPT2LMHeadModel(config)  # yours: AutoModelForCausalLM.from_pretrained(...)

clients = [PreferenceClient(pairs[team::3], tokenizer=tokenizer, beta=0.1) for team in range(3)]
run = FederatedDPO(model, clients, local_steps=4, lr=0.3, rounds=8, batch_size=4)
print(run.predict())
history = run.fit()
print(history)
print(
    history.table[["round", "loss", "accuracy", "chosen", "rejected", "drift", "zeta2"]].round(3).to_string(index=False)
)
print(run.objective.evaluate(run.theta).round(3))  # each team's own pairs
