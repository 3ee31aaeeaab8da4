"""BERT's forward pass in NumPy and float64, on variables of Google's names.

Written from the paper and the names alone, as a reference for what is imported.
Shapes: B row, T token, D hidden, N heads, H head dim, V vocabulary.
"""

import math

import numpy as np

Variables = dict[str, np.ndarray]


def logits(
    variables: Variables,
    input_ids_BT: np.ndarray,
    segment_ids_BT: np.ndarray,
    is_real_BT: np.ndarray,
    *,
    num_layers: int,
    num_heads: int,
    erf: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns float64[B, T, V] of the masked LM and float64[B, 2] of the next sentence.

    GELU is the tanh form unless `erf`.
    """
    v = {name: np.asarray(array, np.float64) for name, array in variables.items()}
    word_VD = v["bert/embeddings/word_embeddings"]
    x_BTD = (
        word_VD[input_ids_BT]
        + v["bert/embeddings/token_type_embeddings"][segment_ids_BT]
        + v["bert/embeddings/position_embeddings"][: input_ids_BT.shape[1]]
    )
    x_BTD = layer_norm(v, "bert/embeddings/LayerNorm", x_BTD)
    for i in range(num_layers):
        path = f"bert/encoder/layer_{i}"
        y_BTD = attention(v, f"{path}/attention", x_BTD, is_real_BT, num_heads)
        x_BTD = layer_norm(v, f"{path}/attention/output/LayerNorm", x_BTD + y_BTD)
        h_BTF = gelu(dense(v, f"{path}/intermediate/dense", x_BTD), erf)
        y_BTD = dense(v, f"{path}/output/dense", h_BTF)
        x_BTD = layer_norm(v, f"{path}/output/LayerNorm", x_BTD + y_BTD)
    path = "cls/predictions"
    h_BTD = gelu(dense(v, f"{path}/transform/dense", x_BTD), erf)
    h_BTD = layer_norm(v, f"{path}/transform/LayerNorm", h_BTD)
    masked_lm_BTV = h_BTD @ word_VD.T + v[f"{path}/output_bias"]
    pooled_BD = np.tanh(dense(v, "bert/pooler/dense", x_BTD[:, 0]))
    path = "cls/seq_relationship"
    next_sentence_B2 = pooled_BD @ v[f"{path}/output_weights"].T
    return masked_lm_BTV, next_sentence_B2 + v[f"{path}/output_bias"]


def attention(
    v: Variables, path: str, x_BTD: np.ndarray, is_real_BT: np.ndarray, num_heads: int
) -> np.ndarray:
    B, T, D = x_BTD.shape

    def heads(name: str) -> np.ndarray:
        y_BTD = dense(v, f"{path}/self/{name}", x_BTD)
        return y_BTD.reshape(B, T, num_heads, -1).transpose(0, 2, 1, 3)

    q_BNTH, k_BNTH, v_BNTH = heads("query"), heads("key"), heads("value")
    scores_BNTT = q_BNTH @ k_BNTH.transpose(0, 1, 3, 2) / math.sqrt(q_BNTH.shape[-1])
    scores_BNTT = np.where(is_real_BT[:, None, None, :], scores_BNTT, -np.inf)
    weights_BNTT = np.exp(scores_BNTT - scores_BNTT.max(-1, keepdims=True))
    weights_BNTT /= weights_BNTT.sum(-1, keepdims=True)
    y_BTD = (weights_BNTT @ v_BNTH).transpose(0, 2, 1, 3).reshape(B, T, D)
    return dense(v, f"{path}/output/dense", y_BTD)


def dense(v: Variables, path: str, x: np.ndarray) -> np.ndarray:
    return x @ v[f"{path}/kernel"] + v[f"{path}/bias"]


def layer_norm(v: Variables, path: str, x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    variance = np.mean(centred**2, -1, keepdims=True)
    return centred / np.sqrt(variance + 1e-12) * v[f"{path}/gamma"] + v[f"{path}/beta"]


def gelu(x: np.ndarray, erf: bool) -> np.ndarray:
    if erf:
        return x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
