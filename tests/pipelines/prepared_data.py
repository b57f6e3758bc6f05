"""Data sets that `txl prepare` writes in this process."""

from pipelines.jobs import prepare
from tests.pipelines.txl_process import parsed
from txl_tf.data.prepared_dataset import PreparedDataset, dataset_tokenizer


def prepared(out, *more):
    arguments = parsed(prepare, "--out", out, "--workers", 1, *more)
    prepare.check_arguments(arguments)
    prepare.run(arguments)
    dataset = PreparedDataset.open(str(out))
    return dataset, dataset_tokenizer(dataset.folder, dataset.manifest)
