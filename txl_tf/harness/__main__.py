"""The harness's command line, with the models of this project.

    python -m txl_tf.harness run --model txl --model_args pretrained=DIR --tasks TASK

It accepts the arguments of `lm_eval`; `--model_args` are arguments of `HarnessModel`.
"""

import sys

from txl_tf.errors import JobError
from txl_tf.imports import require_extra, require_tensorflow_backend


def main() -> int:
    """Runs the command line; returns its exit code."""
    try:
        require_extra("harness", "lm_eval", purpose="The harness")
        require_tensorflow_backend()
        from lm_eval.__main__ import cli_evaluate

        # The import registers the model with the harness.
        import txl_tf.harness.harness_model  # noqa: F401

        cli_evaluate()
    except JobError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
