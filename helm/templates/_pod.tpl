{{/* A tier's pod: (dict "root" $ "tier" "drafter"). */}}
{{- define "specdec.pod" -}}
{{- $values := index .root.Values .tier -}}
metadata:
  labels:
    {{- include "specdec.selector" . | nindent 4 }}
    {{- with .root.Values.global.labels }}{{ toYaml . | nindent 4 }}{{ end }}
    {{- with $values.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  annotations:
    checksum/config: {{ include "specdec.config" . | sha256sum }}
    {{- if eq .tier "gateway" }}
    checksum/redis: {{ include "specdec.redisEnv" .root | sha256sum }}
    {{- end }}
    {{- with $values.podAnnotations }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  serviceAccountName: {{ include "specdec.serviceAccount" . }}
  automountServiceAccountToken: {{ and (eq .tier "gateway") (eq (include "specdec.watchesSlices" .root) "true") }}
  enableServiceLinks: false
  securityContext: {{- include "specdec.overlay" (dict "base" (include "specdec.podSecurity" .) "over" $values.podSecurityContext) | nindent 4 }}
  {{- include "specdec.pullSecrets" .root | nindent 2 }}
  {{- include "specdec.placement" (dict "root" .root "tier" .tier "values" $values) | nindent 2 }}
  {{- if include "specdec.claimsDevices" $values }}
  resourceClaims:
    - {name: accelerator, resourceClaimTemplateName: {{ $values.gpu.claimTemplate }}}
  {{- end }}
  terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
  {{- $init := include "specdec.initContainers" . | trim }}
  {{- if $init }}
  initContainers: {{- $init | nindent 4 }}
  {{- end }}
  containers:
    - name: {{ .tier }}
      {{- include "specdec.container" . | nindent 6 }}
    {{- with $values.sidecars }}{{ toYaml . | nindent 4 }}{{ end }}
  volumes: {{- include "specdec.volumes" . | nindent 4 }}
{{- end -}}

{{/* Scheduling of pods: (dict "root" $ "tier" t "values" v). */}}
{{- define "specdec.placement" -}}
{{- with .values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.schedulerName }}
schedulerName: {{ . }}
{{- end }}
{{- with .values.dnsConfig }}
dnsConfig: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.topologySpreadConstraints }}
topologySpreadConstraints:
{{- range . }}
  - {{- toYaml . | nindent 4 }}
    {{- if not .labelSelector }}
    labelSelector:
      matchLabels: {{- include "specdec.selector" $ | nindent 8 }}
    {{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The image of a tier. The vLLM backend has its own, unless the values name one. */}}
{{- define "specdec.tierImage" -}}
{{- $values := index .root.Values .tier -}}
{{- $image := deepCopy $values.image -}}
{{- if and (eq ($values.backend | default "native") "vllm") (eq $image.repository "specdec/verifier") -}}
{{- $_ := set $image "repository" "specdec/verifier-vllm" -}}
{{- end -}}
{{ include "specdec.image" (dict "root" .root "image" $image) }}
{{- end -}}

{{- define "specdec.container" -}}
{{- $values := index .root.Values .tier -}}
image: {{ include "specdec.tierImage" . }}
imagePullPolicy: {{ $values.image.pullPolicy }}
securityContext: {{- include "specdec.overlay" (dict "base" (include "specdec.containerSecurity" .) "over" $values.securityContext) | nindent 2 }}
args: {{- concat (list "--config" "/config/config.yaml") $values.extraArgs | toYaml | nindent 2 }}
env:
  - {name: HOME, value: /tmp}
  {{- with .root.Values.token.existingSecret }}
  - name: SPECDEC_{{ upper $.tier }}_TOKEN
    valueFrom: {secretKeyRef: {name: {{ . }}, key: {{ $.root.Values.token.existingSecretKey }}}}
  {{- end }}
  {{- if eq .tier "gateway" }}
  {{- include "specdec.redisEnv" .root | trim | nindent 2 }}
  {{- end }}
  {{- with $values.extraEnv }}{{ toYaml . | nindent 2 }}{{ end }}
{{- with $values.extraEnvFrom }}
envFrom: {{- toYaml . | nindent 2 }}
{{- end }}
ports:
  - {name: grpc, containerPort: {{ include "specdec.grpcPort" . }}}
  - {name: http, containerPort: {{ include "specdec.httpPort" . }}}
  - {name: health, containerPort: {{ include "specdec.healthPort" . }}}
  {{- if eq .tier "gateway" }}
  - {name: admin, containerPort: {{ include "specdec.adminPort" . }}}
  {{- end }}
{{ include "specdec.probes" . }}
lifecycle: {{- include "specdec.lifecycle" $values | nindent 2 }}
resources: {{- include "specdec.resources" $values | nindent 2 }}
volumeMounts:
  - {name: config, mountPath: /config, readOnly: true}
  - {name: tmp, mountPath: /tmp}
  {{- if gt (int ($values.tensorParallelSize | default 1)) 1 }}
  - {name: shared-memory, mountPath: /dev/shm}
  {{- end }}
  {{- if ne $values.model.source "image" }}
  - {name: models, mountPath: /models, readOnly: true}
  {{- end }}
  {{- if .root.Values.tls.enabled }}
  - {name: tls, mountPath: /tls, readOnly: true}
  {{- end }}
  {{- if eq .tier "gateway" }}{{ include "specdec.redisMounts" .root | nindent 2 }}{{ include "specdec.callerMounts" $values | nindent 2 }}{{ end }}
  {{- with $values.extraVolumeMounts }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end -}}

{{/* API keys and public certificate of a gateway, mounted as folders so that a changed Secret reaches the process. */}}
{{- define "specdec.callerMounts" -}}
{{- if .apiKeys.existingSecret }}
- {name: api-keys, mountPath: /api-keys, readOnly: true}
{{- end }}
{{- if .tls.public.existingSecret }}
- {name: public-tls, mountPath: /public-tls, readOnly: true}
{{- end }}
{{- end -}}

{{- define "specdec.callerVolumes" -}}
{{- with .apiKeys }}{{ if .existingSecret }}
- name: api-keys
  secret: {secretName: {{ .existingSecret }}, items: [{key: {{ .existingSecretKey }}, path: {{ .existingSecretKey }}}], defaultMode: 0440}
{{- end }}{{ end }}
{{- with .tls.public.existingSecret }}
- name: public-tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{/* gRPC probes on the plaintext port; the port is a number, for a probe takes no name. A GPU tier has started once its model
     is loaded; the gateway once it answers, for its verifiers may come later. */}}
{{- define "specdec.probes" -}}
{{- $values := index .root.Values .tier -}}
{{- $port := include "specdec.healthPort" . -}}
{{- $started := ternary "liveness" "" (eq .tier "gateway") -}}
{{- $failures := div (add (int $values.startupSeconds) 4) 5 | max 1 -}}
startupProbe:
{{- with $values.probes.startup }}{{ include "specdec.probe" . | nindent 2 }}{{ else }}
  grpc: {port: {{ $port }}, service: {{ $started | quote }}}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: {{ $failures }}
{{- end }}
readinessProbe:
{{- with $values.probes.readiness }}{{ include "specdec.probe" . | nindent 2 }}{{ else }}
  grpc: {port: {{ $port }}, service: {{ include "specdec.readyService" . }}}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: 2
{{- end }}
livenessProbe:
{{- with $values.probes.liveness }}{{ include "specdec.probe" . | nindent 2 }}{{ else }}
  grpc: {port: {{ $port }}, service: liveness}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end }}
{{- end -}}

{{/* A probe of the values. Its scheme is said even where it is the API's default: a default belongs to nobody, so that it would stay,
     and forbid any other kind of probe, when an upgrade takes the rest away. */}}
{{- define "specdec.probe" -}}
{{- $probe := deepCopy . -}}
{{- if $probe.httpGet }}{{ $_ := set $probe "httpGet" (merge $probe.httpGet (dict "scheme" "HTTP")) }}{{ end -}}
{{ toYaml $probe }}
{{- end -}}

{{/* A terminating pod continues to serve until it no longer receives requests. */}}
{{- define "specdec.lifecycle" -}}
{{- if .lifecycle -}}
{{ toYaml .lifecycle }}
{{- else -}}
preStop:
  {{- if eq .drain.preStop "sleep" }}
  sleep: {seconds: {{ .drain.preStopSeconds }}}
  {{- else }}
  exec: {command: [sleep, {{ .drain.preStopSeconds | quote }}]}
  {{- end }}
{{- end -}}
{{- end -}}

{{/* Whether a tier's accelerators are requested by a claim instead of a count. */}}
{{- define "specdec.claimsDevices" -}}
{{- if .gpu }}{{ if and .gpu.enabled .gpu.claimTemplate }}true{{ end }}{{ end -}}
{{- end -}}

{{/* Requests and limits, including the accelerator and the node's disk. */}}
{{- define "specdec.resources" -}}
{{- $resources := deepCopy .resources -}}
{{- $onDisk := and (include "specdec.downloads" .) (eq .model.cache.kind "emptyDir") -}}
{{- if not (hasKey ($resources.limits | default dict) "ephemeral-storage") -}}
{{- $disk := dict "ephemeral-storage" (ternary .model.cache.size .tmpSize (not (empty $onDisk))) -}}
{{- $_ := set $resources "requests" (merge ($resources.requests | default dict) $disk) -}}
{{- end -}}
{{- if include "specdec.claimsDevices" . -}}
{{- $_ := set $resources "claims" (list (dict "name" "accelerator")) -}}
{{- else if and .gpu .gpu.enabled -}}
{{- $gpu := dict .gpu.resourceName (.gpu.count | toString) -}}
{{- $_ := set $resources "limits" (merge $gpu ($resources.limits | default dict)) -}}
{{- $_ := set $resources "requests" (merge $gpu ($resources.requests | default dict)) -}}
{{- end -}}
{{ toYaml $resources }}
{{- end -}}

{{- define "specdec.volumes" -}}
{{- $values := index .root.Values .tier -}}
{{- $model := $values.model -}}
- name: config
  configMap: {name: {{ include "specdec.name" . }}}
- name: tmp
  emptyDir: {sizeLimit: {{ $values.tmpSize }}}
{{- if gt (int ($values.tensorParallelSize | default 1)) 1 }}
- name: shared-memory
  emptyDir: {medium: Memory}
{{- end }}
{{- if eq $model.source "claim" }}
- name: models
  persistentVolumeClaim: {claimName: {{ $model.existingClaim }}, readOnly: true}
{{- else if eq $model.source "oci" }}
- name: models
  image: {reference: {{ $model.oci.reference | trimPrefix "oci://" }}, pullPolicy: {{ $model.oci.pullPolicy }}}
{{- else if include "specdec.downloads" $values }}
- name: models
  {{- if eq $model.cache.kind "emptyDir" }}
  emptyDir: {sizeLimit: {{ $model.cache.size }}}
  {{- else if eq $model.cache.kind "claim" }}
  persistentVolumeClaim: {claimName: {{ include "specdec.name" . }}-models}
  {{- else }}
  persistentVolumeClaim: {claimName: {{ $model.cache.existingClaim }}}
  {{- end }}
{{- end }}
{{- if .root.Values.tls.enabled }}
- name: tls
  secret: {secretName: {{ include "specdec.tlsSecret" . }}, defaultMode: 0440}
{{- end }}
{{- if eq .tier "gateway" }}{{ include "specdec.redisVolumes" .root }}{{ include "specdec.callerVolumes" $values }}{{ end }}
{{- with $values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
