"""What small random models of Hugging Face Transformers have."""

SIZES = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "pad_token_id": 0,
}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 2}
