# A machine of Compute Engine, without the Cloud TPU API.
create() {
    gcloud compute instances create "$NAME" --zone "$ZONE" --project "$PROJECT" \
        --machine-type "$MACHINE" --image-family ubuntu-2204-lts \
        --image-project ubuntu-os-cloud --boot-disk-size 100GB \
        --maintenance-policy TERMINATE --scopes cloud-platform $SPOT
}
delete() {
    gcloud compute instances delete "$NAME" --zone "$ZONE" --project "$PROJECT" --quiet
}
on() {
    gcloud compute ssh "$NAME" --zone "$ZONE" --project "$PROJECT" --command "$2"
}
copy() {
    gcloud compute scp "$1" "$NAME:" --zone "$ZONE" --project "$PROJECT"
}
