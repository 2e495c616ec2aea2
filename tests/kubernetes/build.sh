#!/usr/bin/env bash
# Builds a real kube-apiserver (1.20.2) and etcd from Debian 12's own packages into one folder: ./build.sh FOLDER
# No root and no Go module is needed; everything comes from the apt mirror this machine is set up with. A step that is
# done is not done again. Five to twenty minutes on two cores and 3 GB of scratch, which is removed at the end.
set -euo pipefail

out=$(mkdir -p "$1" && cd "$1" && pwd)
scratch=$out/scratch
sources=$scratch/gopath/src/k8s.io/kubernetes
version=v1.20.2

# apt with a state of its own, so that asking for source packages changes nothing on this machine.
private_apt() {
    apt-get --quiet --option Dir::Etc::sourcelist=/dev/null --option Dir::Etc::sourceparts="$scratch/sources" \
        --option Dir::State::lists="$scratch/lists" --option Dir::Cache="$scratch/cache" \
        --option Debug::NoLocking=1 --option APT::Sandbox::User=root "$@"
}

configure_apt() {
    mkdir -p "$scratch"/{sources,lists/partial,cache/archives/partial}
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
        [ -f "$file" ] && sed -E 's/^deb /deb-src /' "$file" | cat - "$file" > "$scratch/sources/$(basename "$file")"
    done
    for file in /etc/apt/sources.list.d/*.sources; do
        [ -f "$file" ] && sed -E 's/^Types:.*/Types: deb deb-src/' "$file" > "$scratch/sources/$(basename "$file")"
    done
    private_apt update
}

fetch() {
    mkdir -p "$scratch/packages" && cd "$scratch/packages"
    private_apt source --download-only kubernetes
    private_apt download golang-1.19-go golang-1.19-src etcd-server golang-github-modern-go-reflect2-dev
    for package in *.deb; do dpkg -x "$package" "$scratch/debian"; done
}

unpack() {
    cp -rL "$scratch/debian/usr/lib/go-1.19" "$scratch/goroot"  # go follows no links
    mkdir -p "$sources"
    tar -xf "$scratch"/packages/kubernetes_*.orig.tar.* -C "$sources" --strip-components 1
    # The vendored reflect2 1.0.1 crashes on every custom resource when built with Go 1.18 or newer.
    local reflect2=github.com/modern-go/reflect2
    rm -r "$sources/vendor/$reflect2"
    cp -r "$scratch/debian/usr/share/gocode/src/$reflect2" "$sources/vendor/$reflect2"
    cp "$scratch/debian/usr/bin/etcd" "$out/etcd"
}

go_environment() {
    export GOROOT=$scratch/goroot GOPATH=$scratch/gopath GOCACHE=$scratch/gocache
    export GO111MODULE=off GOPROXY=off CGO_ENABLED=0 PATH=$scratch/goroot/bin:$PATH
}

# The sources leave out the API's own description, which the server does not compile without.
describe_api() {
    cd "$sources"
    go build -o "$scratch/openapi-gen" k8s.io/kubernetes/vendor/k8s.io/kube-openapi/cmd/openapi-gen
    grep -rlE --include='*.go' '^\s*//\s*\+k8s:openapi-gen=' pkg staging/src/k8s.io cmd vendor/github.com |
        grep -vE '_test.go|/testdata/|openapi-gen/|/generators/|zz_generated' | xargs -n1 dirname |
        sed -E 's#^staging/src/#k8s.io/kubernetes/vendor/#; s#^(pkg|cmd|vendor)/#k8s.io/kubernetes/\1/#' | sort -u |
        grep -vE 'sample-|examples|code-generator|/openapi/cmd' | sed 's/^/-i /' |
        xargs "$scratch/openapi-gen" -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi \
            -h hack/boilerplate/boilerplate.generatego.txt -r "$scratch/violations.list"
}

compile() {
    cd "$sources"
    local flags="-s -w"
    for package in component-base/version client-go/pkg/version; do  # what --version says, and what /version says
        local variable=k8s.io/kubernetes/vendor/k8s.io/$package.git
        flags+=" -X ${variable}Version=$version -X ${variable}Major=1 -X ${variable}Minor=20"
    done
    go build -trimpath -ldflags "$flags" -o "$out/kube-apiserver" k8s.io/kubernetes/cmd/kube-apiserver
}

step() {
    [ -e "$scratch/$1.done" ] && return
    echo "== $1"
    "$1"
    touch "$scratch/$1.done"
}

[ -x "$out/kube-apiserver" ] && [ -x "$out/etcd" ] && exit 0
for name in configure_apt fetch unpack; do step "$name"; done
go_environment
for name in describe_api compile; do step "$name"; done
rm -rf "$scratch"
