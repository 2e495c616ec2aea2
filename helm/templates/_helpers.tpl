{{/* Prefix of every object's name, unique to the release in its namespace. A prefix that is too long ends in a hash of the whole. */}}
{{- define "specdec.fullname" -}}
{{- $chart := default .Chart.Name .Values.nameOverride -}}
{{- $name := ternary $chart (printf "%s-%s" .Release.Name $chart) (eq .Release.Name $chart) -}}
{{- $name = .Values.fullnameOverride | default $name -}}
{{- if gt (len $name) 40 -}}
{{ $name | trunc 31 | trimSuffix "-" | trimSuffix "." }}-{{ $name | sha256sum | trunc 8 }}
{{- else -}}
{{ $name }}
{{- end -}}
{{- end -}}

{{/* Name of a tier's objects: (dict "root" $ "tier" "drafter"). */}}
{{- define "specdec.name" -}}
{{ include "specdec.fullname" .root }}-{{ .tier }}
{{- end -}}

{{/* Labels of a selector. None of them may change on upgrade. */}}
{{- define "specdec.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .tier }}
{{- end -}}

{{/* Labels of every object. */}}
{{- define "specdec.labels" -}}
{{ include "specdec.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: specdec
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.global.labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Metadata of a tier's object: (dict "root" $ "tier" "drafter" "suffix" "-headless"). */}}
{{- define "specdec.metadata" -}}
name: {{ include "specdec.name" . }}{{ .suffix | default "" }}
namespace: {{ .root.Release.Namespace }}
labels: {{- include "specdec.labels" . | nindent 2 }}
{{- end -}}

{{/* An image: (dict "root" $ "image" .image); "foreign" is true for images of others. A digest overrides the tag. */}}
{{- define "specdec.image" -}}
{{- $own := ternary "" .root.Values.imageRegistry (not (empty .foreign)) -}}
{{- $registry := coalesce .root.Values.global.imageRegistry .image.registry $own -}}
{{- $path := .image.repository -}}
{{- if $registry }}{{ $path = printf "%s/%s" $registry $path }}{{ end -}}
{{- if .image.digest -}}
{{ $path }}@{{ .image.digest }}
{{- else -}}
{{ $path }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "specdec.pullSecrets" -}}
{{- with .Values.global.imagePullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ if kindIs "map" . }}{{ .name }}{{ else }}{{ . }}{{ end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Tiers that are installed. */}}
{{- define "specdec.tiers" -}}
{{- $tiers := list -}}
{{- range list "drafter" "verifier" "gateway" }}{{ if (index $.Values .).enabled }}{{ $tiers = append $tiers . }}{{ end }}{{ end -}}
{{- if not $tiers }}{{ fail "\n\nThere is nothing to install: set drafter.enabled, verifier.enabled or gateway.enabled.\n" }}{{ end -}}
{{ join " " $tiers }}
{{- end -}}

{{/* Addresses by which a tier is found by DNS, this release's own first, as JSON: (dict "root" $ "tier" "drafter"). */}}
{{- define "specdec.addresses" -}}
{{- $values := index .root.Values .tier -}}
{{- $own := printf "%s-headless.%s.svc:%s" (include "specdec.name" .) .root.Release.Namespace (include "specdec.grpcPort" .) -}}
{{- $found := $values.external.addresses -}}
{{- if $values.enabled }}{{ $found = prepend $found $own }}{{ end -}}
{{ toJson $found }}
{{- end -}}

{{/* How gateways discover verifiers. EndpointSlices cover only this namespace. */}}
{{- define "specdec.discoveryKind" -}}
{{ ternary "dns" .Values.discovery.kind (not (empty .Values.verifier.external.addresses)) }}
{{- end -}}

{{/* Whether gateways read EndpointSlices. */}}
{{- define "specdec.watchesSlices" -}}
{{- if and .Values.gateway.enabled (eq (include "specdec.discoveryKind" .) "kubernetes") }}true{{ end -}}
{{- end -}}

{{/* Whether KEDA scales any tier. */}}
{{- define "specdec.usesKeda" -}}
{{- range splitList " " (include "specdec.tiers" .) }}{{ if eq (index $.Values .).autoscaling.kind "keda" }}true{{ end }}{{ end -}}
{{- end -}}

{{/* Whether the ratio controller runs. */}}
{{- define "specdec.ratio" -}}
{{- if and .Values.drafter.enabled (eq .Values.drafter.autoscaling.kind "ratio") }}true{{ end -}}
{{- end -}}

{{/* Whether the ratio controller queries Prometheus with a token. */}}
{{- define "specdec.ratioHasToken" -}}
{{- if and .Values.metrics.prometheusAddress .Values.metrics.prometheusAuth.tokenSecret.name }}true{{ end -}}
{{- end -}}

{{- define "specdec.serviceAccount" -}}
{{- $sa := (index .root.Values .tier).serviceAccount -}}
{{ $sa.name | default (ternary (include "specdec.name" .) "default" $sa.create) }}
{{- end -}}

{{/* Port of a tier's gRPC API. */}}
{{- define "specdec.grpcPort" -}}
{{ get (dict "gateway" "50051" "drafter" "50052" "verifier" "50053") .tier }}
{{- end -}}

{{/* Plaintext port of health and reflection, reachable only by the kubelet. */}}
{{- define "specdec.healthPort" -}}
8081
{{- end -}}

{{/* Port of /metrics and of the details of /readyz. */}}
{{- define "specdec.adminPort" -}}
9090
{{- end -}}

{{/* HTTP port of a tier: the OpenAI API of gateways, and the admin API of other tiers. */}}
{{- define "specdec.httpPort" -}}
{{ get (dict "gateway" "8000" "drafter" "9090" "verifier" "9090") .tier }}
{{- end -}}

{{/* Full name of the gRPC service whose health is a tier's readiness. */}}
{{- define "specdec.healthService" -}}
{{ get (dict
  "gateway" "specdec.gateway.v1.GenerationService"
  "drafter" "specdec.drafter.v1.DrafterService"
  "verifier" "specdec.verifier.v1.VerifierService") .tier }}
{{- end -}}

{{/* Whether an init container downloads a tier's model: (index .Values "drafter"). */}}
{{- define "specdec.downloads" -}}
{{- if has .model.source (list "huggingFace" "s3") }}true{{ end -}}
{{- end -}}

{{/* Path of a tier's model in its container. */}}
{{- define "specdec.modelPath" -}}
{{- $model := (index .root.Values .tier).model -}}
{{- if eq $model.source "image" -}}
{{ $model.path }}
{{- else if has $model.source (list "claim" "oci") -}}
/models/{{ $model.path }}
{{- else if eq $model.source "s3" -}}
/models/{{ $model.s3.uri | trimPrefix "s3://" | trimSuffix "/" | replace "/" "--" }}
{{- else -}}
{{ include "specdec.repositoryPath" $model.huggingFace }}
{{- end -}}
{{- end -}}

{{/* The name under which the gateways' own model is served. */}}
{{- define "specdec.servedName" -}}
{{ .Values.gateway.model.name | default (include "specdec.modelPath" (dict "root" . "tier" "gateway") | base) }}
{{- end -}}

{{/* Path of the tokenizer of one of `models` in a gateway: (dict "root" $ "model" .model). */}}
{{- define "specdec.routedPath" -}}
{{- if .model.huggingFace -}}
{{ include "specdec.repositoryPath" .model.huggingFace }}
{{- else -}}
{{ hasPrefix "/" .model.path | ternary "" "/models/" }}{{ .model.path }}
{{- end -}}
{{- end -}}

{{/* Path of a download from Hugging Face: its repository and revision. */}}
{{- define "specdec.repositoryPath" -}}
/models/{{ .repository | replace "/" "--" }}--{{ .revision | replace "/" "--" }}
{{- end -}}

{{/* Source of certificates, from the values alone: a lookup in the cluster would differ between `helm template` and `helm install`. */}}
{{- define "specdec.tlsMode" -}}
{{- with .Values.tls -}}
{{- if ne .mode "auto" }}{{ .mode }}
{{- else if .certManager.issuerRef.name }}certManager
{{- else if or .existingSecrets.drafter .existingSecrets.verifier .existingSecrets.gateway }}existingSecrets
{{- else }}selfSigned
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Secret with a tier's certificate. */}}
{{- define "specdec.tlsSecret" -}}
{{- if eq (include "specdec.tlsMode" .root) "existingSecrets" -}}
{{ index .root.Values.tls.existingSecrets .tier }}
{{- else -}}
{{ include "specdec.name" . }}-tls
{{- end -}}
{{- end -}}

{{/* DNS names in a tier's certificate, as JSON. */}}
{{- define "specdec.tlsNames" -}}
{{- $headless := printf "%s-headless.%s.svc" (include "specdec.name" .) .root.Release.Namespace -}}
{{ list (include "specdec.tlsName" .) $headless (printf "*.%s" $headless) | toJson }}
{{- end -}}

{{/* Annotations of the objects that make certificates before pods need them: (the weight). */}}
{{- define "specdec.certificateHook" -}}
helm.sh/hook: pre-install,pre-upgrade
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{/* DNS name in a tier's certificate, which its clients verify. */}}
{{- define "specdec.tlsName" -}}
{{ include "specdec.name" . }}.{{ .root.Release.Namespace }}.svc
{{- end -}}

{{/* Security context of pods, without further rights. */}}
{{- define "specdec.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "specdec.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Defaults merged with overrides. A null in the overrides removes a field: (dict "base" yaml "over" map). */}}
{{- define "specdec.overlay" -}}
{{- $base := fromYaml .base -}}
{{- range $key, $value := .over -}}
{{- if kindIs "invalid" $value -}}{{- $_ := unset $base $key -}}{{- else -}}{{- $_ := set $base $key $value -}}{{- end -}}
{{- end -}}
{{ toYaml $base }}
{{- end -}}

{{/* Ports of DNS, for network policies. */}}
{{- define "specdec.dnsPorts" -}}
{{- range .Values.networkPolicy.dnsPorts }}
- {port: {{ int . }}, protocol: UDP}
- {port: {{ int . }}, protocol: TCP}
{{- end }}
{{- end -}}

{{/* Protocol of a tier's gRPC port, for service meshes. With mutual TLS a mesh sees only TLS. */}}
{{- define "specdec.grpcProtocol" -}}
{{- if eq .tier "gateway" -}}
kubernetes.io/h2c
{{- else -}}
{{ ternary "tls" "grpc" .root.Values.tls.enabled }}
{{- end -}}
{{- end -}}

{{/* Backends of a route: this release's gateways, and those of a canary: (dict "root" $ "port" "8000"). */}}
{{- define "specdec.backends" -}}
{{- $canary := .root.Values.gatewayApi.canary -}}
{{- $own := include "specdec.name" (dict "root" .root "tier" "gateway") -}}
{{- if $canary.service -}}
- {name: {{ $own }}, port: {{ .port }}, weight: {{ sub 100 (int $canary.weight) }}}
- {name: {{ $canary.service }}, port: {{ .port }}, weight: {{ int $canary.weight }}}
{{- else -}}
- {name: {{ $own }}, port: {{ .port }}}
{{- end -}}
{{- end -}}

{{/* Host of a host:port, without the brackets of an IPv6 address. */}}
{{- define "specdec.host" -}}
{{ regexReplaceAll ":[0-9]+$" . "" | trimAll "[]" }}
{{- end -}}

{{/* Port of a URL. */}}
{{- define "specdec.urlPort" -}}
{{- $url := urlParse . -}}
{{- $port := regexFind ":[0-9]+$" $url.host | trimPrefix ":" -}}
{{ $port | default (ternary "443" "80" (eq $url.scheme "https")) }}
{{- end -}}

{{/* The node port of a Service, if one is requested: (dict "service" .service "port" "grpc"). */}}
{{- define "specdec.nodePort" -}}
{{- $port := dig "nodePorts" .port 0 .service | int -}}
{{- if and $port (ne (.service.type | default "ClusterIP") "ClusterIP") }}, nodePort: {{ $port }}{{ end -}}
{{- end -}}
