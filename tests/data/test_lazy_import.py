import subprocess
import sys

PROGRAM = """
import sys
import txl_tf.data
import txl_tf.data.corpora.standard_library
import txl_tf.data.corpora
import txl_tf.data.vocabulary_training
from txl_tf.data import ByteTokenizer, Manifest, PreparedDataset, SegmentPlan, prepare_dataset
import pipelines.prepare
import pipelines.verify
assert "tensorflow" not in sys.modules
assert "SegmentReader" in dir(txl_tf.data)
try:
    txl_tf.data.no_such_name
except AttributeError:
    print("ok")
"""


def test_what_the_command_line_needs_does_not_import_tensorflow():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("ok\n", 0), done.stderr


def test_every_exported_name_can_be_had():
    import txl_tf.data

    for name in txl_tf.data.__all__:
        assert getattr(txl_tf.data, name).__name__ == name
