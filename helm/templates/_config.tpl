{{/* The YAML that a tier's process reads: the chart's settings, merged over the tier's own `config`. */}}
{{- define "specdec.config" -}}
{{- $config := fromYaml (include (printf "specdec.config.%s" .tier) .) -}}
{{- $model := (index .root.Values .tier).model -}}
{{- $_ := set $config "model" (merge (dict "path" (include "specdec.modelPath" .)) ($config.model | default dict)) -}}
{{- with $model.name }}{{ $_ := set $config.model "name" . }}{{ end -}}
{{- $_ := set $config "address" (printf "[::]:%s" (include "specdec.grpcPort" .)) -}}
{{- $_ := set $config "http" (printf "[::]:%s" (include "specdec.httpPort" .)) -}}
{{- $_ := set $config "health" (printf "[::]:%s" (include "specdec.healthPort" .)) -}}
{{- if eq .tier "gateway" }}{{ $_ := set $config "admin" (printf "[::]:%s" (include "specdec.adminPort" .)) }}{{ end -}}
{{- with .root.Values.otel.endpoint }}{{ $_ := set $config "otel" (dict "endpoint" .) }}{{ end -}}
{{- $dials := get (dict "gateway" "verifier" "verifier" "drafter") .tier -}}
{{- if .root.Values.tls.enabled }}{{ $_ := set $config "tls" (fromYaml (include "specdec.config.tls" (merge (dict "dials" $dials) .))) }}{{ end -}}
{{ toYaml (mustMergeOverwrite (deepCopy (index .root.Values .tier).config) $config) }}
{{- end -}}

{{- define "specdec.config.drafter" -}}
{{- with .root.Values.speculation.drafterLocal }}
local: {{ toJson . }}
{{- end }}
{{- if .root.Values.speculation.sampled }}
sources: {sampled: true}
{{- end }}
{{- if not (or .root.Values.speculation.drafterLocal .root.Values.speculation.sampled) }}
{}
{{- end }}
{{- end -}}

{{- define "specdec.config.verifier" -}}
{{- $drafters := include "specdec.addresses" (dict "root" .root "tier" "drafter") -}}
gamma: {{ toJson .root.Values.speculation.gamma }}
lenience: {{ .root.Values.speculation.lenience }}
{{- with .root.Values.speculation.tree }}
tree: {{ toJson . }}
{{- end }}
gamma_max: {{ .root.Values.speculation.gammaMax }}
drafter: {{ .root.Values.speculation.drafter | quote }}
local: {{ toJson .root.Values.speculation.local }}
drafter_vocabulary: {{ .root.Values.speculation.drafterVocabulary }}
{{- if .root.Values.speculation.sampled }}
sources: {sampled: true}
{{- end }}
drain_seconds: {{ .root.Values.verifier.drain.seconds }}
backend: {{ .root.Values.verifier.backend }}
{{- if gt (int .root.Values.verifier.tensorParallelSize) 1 }}
vllm:
  engine_args: {tensor_parallel_size: {{ .root.Values.verifier.tensorParallelSize }}}
{{- end }}
{{- if ne $drafters "[]" }}
discovery:
  kind: dns
  names: {{ $drafters }}
{{- end }}
{{- end -}}

{{- define "specdec.config.gateway" -}}
{{- $verifier := dict "root" .root "tier" "verifier" -}}
{{- $headless := printf "%s-headless" (include "specdec.name" $verifier) -}}
mode: {{ .root.Values.speculation.mode | quote }}
cors_origins: {{ toJson .root.Values.gateway.corsOrigins }}
redis_prefix: {{ .root.Values.redis.keyPrefix | default (printf "%s/%s:" .root.Release.Namespace .root.Release.Name) | quote }}
{{- with .root.Values.gateway.apiKeys }}{{ if .existingSecret }}
api_keys: /api-keys/{{ .existingSecretKey }}
{{- end }}{{ end }}
{{- if .root.Values.gateway.tls.public.existingSecret }}
public_tls:
  certificate: /public-tls/tls.crt
  key: /public-tls/tls.key
{{- end }}
drain:
  limit: {{ .root.Values.gateway.drain.seconds }}
discovery:
  kind: {{ include "specdec.discoveryKind" .root }}
{{- if eq (include "specdec.discoveryKind" .root) "dns" }}
  names: {{ include "specdec.addresses" $verifier }}
{{- else }}
  names: [{{ $headless }}]
  port: grpc
{{- end }}
{{- with .root.Values.models }}
models:
{{- range $name, $model := . }}
  {{ $name | quote }}:
    path: {{ include "specdec.routedPath" (dict "root" $.root "model" $model) | quote }}
    discovery: {kind: dns, names: {{ toJson $model.addresses }}}
    {{- if $.root.Values.tls.enabled }}
    peer: {{ $model.tlsName | default (include "specdec.host" (first $model.addresses)) | quote }}
    {{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "specdec.config.tls" -}}
certificate: /tls/tls.crt
key: /tls/tls.key
ca: /tls/ca.crt
{{- with .dials }}
peer: {{ (index $.root.Values .).external.tlsName | default (include "specdec.tlsName" (dict "root" $.root "tier" .)) }}
{{- end }}
{{- end -}}

{{/* The YAML that the ratio controller reads: the chart's settings, merged over its own `config`. */}}
{{- define "specdec.config.ratio" -}}
{{ toYaml (mustMergeOverwrite (deepCopy .Values.ratioController.config) (fromYaml (include "specdec.config.ratio.known" .))) }}
{{- end -}}

{{/* The Lease must last longer than two intervals of the controller. */}}
{{- define "specdec.config.ratio.known" -}}
{{- $scaling := .Values.drafter.autoscaling -}}
deployment: {{ include "specdec.name" (dict "root" . "tier" "drafter") }}
http: "[::]:9090"
interval: {{ .Values.ratioController.interval }}
cluster:
  namespace: {{ .Release.Namespace }}
lease:
  name: {{ include "specdec.name" (dict "root" . "tier" "ratio-controller") }}
  duration: {{ max 30 (add 15 (mul 2 .Values.ratioController.interval)) }}
scaling:
  minimum: {{ $scaling.minReplicas }}
  maximum: {{ $scaling.maxReplicas }}
  down_seconds: {{ $scaling.scaleDownSeconds }}
  min_speedup: {{ .Values.speculation.minSpeedup }}
metrics:
  {{- if .Values.metrics.prometheusAddress }}
  prometheus: {{ .Values.metrics.prometheusAddress }}
  matchers: {{ include "specdec.matchers" . | squote }}
  {{- with .Values.metrics.prometheusAuth }}
  {{- with .headers }}
  headers: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if .tokenSecret.name }}
  token_file: /prometheus/{{ .tokenSecret.key }}
  {{- end }}
  {{- end }}
  {{- else }}
  {{- range $tier := list "verifier" "drafter" }}
  {{- $each := dict "root" $ "tier" $tier }}
  {{ $tier }}s: ["{{ include "specdec.name" $each }}-headless.{{ $.Release.Namespace }}.svc:{{ include "specdec.httpPort" $each }}"]
  {{- end }}
  {{- end }}
{{- end -}}
