"""A Llama decoder in plain PyTorch, with the parameter names of Hugging Face's LlamaForCausalLM."""

import torch
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


def rotate(x, cos, sin):
    """RoPE on x [batch, heads, tokens, head_dim]; pairs are (i, i + head_dim / 2)."""
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, s: dict):
        super().__init__()
        self.shape = (s["q_heads"], s["kv_heads"], s["head_dim"])
        q_size, kv_size = s["q_heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"]
        self.q_proj = nn.Linear(s["hidden"], q_size, bias=False)
        self.k_proj = nn.Linear(s["hidden"], kv_size, bias=False)
        self.v_proj = nn.Linear(s["hidden"], kv_size, bias=False)
        self.o_proj = nn.Linear(q_size, s["hidden"], bias=False)

    def forward(self, x, cos, sin):
        batch, tokens, _ = x.shape
        q_heads, kv_heads, head_dim = self.shape

        def split(y, heads):
            return y.view(batch, tokens, heads, head_dim).transpose(1, 2)

        q = rotate(split(self.q_proj(x), q_heads), cos, sin)
        k = rotate(split(self.k_proj(x), kv_heads), cos, sin)
        v = split(self.v_proj(x), kv_heads)
        group = q_heads // kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        q, k = q.to(v.dtype), k.to(v.dtype)  # RoPE is f32 under autocast
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(batch, tokens, -1))


class Mlp(nn.Module):
    def __init__(self, s: dict):
        super().__init__()
        self.gate_proj = nn.Linear(s["hidden"], s["feed_forward"], bias=False)
        self.up_proj = nn.Linear(s["hidden"], s["feed_forward"], bias=False)
        self.down_proj = nn.Linear(s["feed_forward"], s["hidden"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, s: dict):
        super().__init__()
        self.input_layernorm = RMSNorm(s["hidden"], s["norm_eps"])
        self.self_attn = Attention(s)
        self.post_attention_layernorm = RMSNorm(s["hidden"], s["norm_eps"])
        self.mlp = Mlp(s)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, s: dict):
        super().__init__()
        self.embed_tokens = nn.Embedding(s["vocab"], s["hidden"])
        self.layers = nn.ModuleList(Layer(s) for _ in range(s["layers"]))
        self.norm = RMSNorm(s["hidden"], s["norm_eps"])


class Llama(nn.Module):
    """`settings` as in settings.json. The output head is the embedding (tied)."""

    def __init__(self, settings: dict):
        super().__init__()
        self.model = Body(settings)
        pairs = torch.arange(0, settings["head_dim"], 2).float() / settings["head_dim"]
        angles = torch.outer(
            torch.arange(settings["context"]).float(), settings["rope_theta"] ** -pairs
        )
        angles = torch.cat((angles, angles), dim=-1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                depth = (
                    (2 * settings["layers"]) ** 0.5
                    if name.endswith(("o_proj.weight", "down_proj.weight"))
                    else 1.0
                )
                nn.init.normal_(p, std=0.02 / depth)

    def forward(self, ids):
        """ids [batch, tokens] -> logits [batch, tokens, vocab]."""
        x = self.model.embed_tokens(ids)
        cos, sin = (t[: ids.shape[1]].to(x.dtype) for t in (self.cos, self.sin))
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)
