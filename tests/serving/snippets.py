"""The three ways to ask an export for a text, as README shows them."""

CURL = (
    """curl -d '{"instances": ["Once upon a time"]}' http://127.0.0.1:8501/v1/models/txl:predict"""
)

TENSORFLOW = """\
import tensorflow as tf

model = tf.saved_model.load("export/mine/1")
answer = model.signatures["serving_default"](tf.constant(["Once upon a time"]))
print(answer["texts"][0].numpy().decode())
"""

SESSION = """\
from txl_tf.serving import GrpcTransport, ServingSession

session = ServingSession(GrpcTransport("127.0.0.1:8500", "txl"))
print(session.generate_text(50, "Once upon a time").decode(errors="replace"))
print(session.generate_text(50).decode(errors="replace"))  # goes on, with memory
"""
