# The first host trains. In a slice, every host runs TensorFlow's server, which computes on the
# chips of the host, and the trainer connects to all servers.
PATHS='export PATH="$HOME/txl-environment/bin:$PATH"'

install() {
    # Run this in the checkout.
    tar --create --gzip --file txl-tf.tar.gz pyproject.toml README.md txl_tf pipelines
    copy txl-tf.tar.gz
    on all "mkdir -p txl-tf && tar --extract --gzip --file txl-tf.tar.gz --directory txl-tf"
    if [ -n "$CONFIG_FILE" ]; then
        copy "$CONFIG_FILE"
    fi
    # The images have an older Python. tensorflow-text is installed without its dependencies, which
    # name the wheel for CPUs. The code is built with the packages installed before.
    on all "sudo apt-get update && sudo apt-get install --yes python3.11 python3.11-venv \
&& python3.11 -m venv txl-environment && $PATHS \
&& pip install --require-hashes -r ./txl-tf/pipelines/launch/requirements-tpu-vm.txt \
&& pip install --no-deps $TEXT && pip install --no-deps --no-build-isolation ./txl-tf"
}

serve() {
    # The loop starts the server again when it has ended.
    on all "$PATHS && { nohup sh -c 'while :; do python -m txl_tf_pipelines.launch.worker_server; \
sleep 5; done' > txl-server.log 2>&1 < /dev/null & }"
    on 0 "echo $(addresses) > txl-tpu-addresses"
}

check() {
    on 0 "$PATHS && $TPU txl doctor --tpu \"\$TPU_ADDRESS\" --folder $WORKDIR"
}

train() {
    # The job outlives the connection, and starts again if a preemption leaves the machine.
    on 0 "$PATHS && $TPU { nohup sh txl-tf/pipelines/launch/run_until_done.sh \
txl train --tpu \"\$TPU_ADDRESS\" $TRAIN > txl-train.log 2>&1 < /dev/null & \
echo \$! > txl-train.pid; }"
}

follow() {
    on 0 "tail -n 100 -F txl-train.log"
}

stop() {
    # The job saves before it ends.
    on 0 'kill -s TERM "$(cat txl-train.pid)"'
}

watch() {
    tensorboard --logdir "$TENSORBOARD"
}

if [ "$HOSTS" -gt 1 ]; then
    TPU='export TPU_LOAD_LIBRARY=0 TPU_ADDRESS="$(cat txl-tpu-addresses)" &&'
    steps="create install serve check train"
else
    TPU='export TPU_ADDRESS=local &&'
    steps="create install check train"
fi
case $1 in
start)
    set -e
    for step in $steps; do "$step"; done
    ;;
create | install | serve | check | train | follow | stop | watch | delete) "$1" ;;
*) echo "usage: $0 start|follow|watch|stop|delete, or one of: $steps" >&2 && exit 2 ;;
esac
