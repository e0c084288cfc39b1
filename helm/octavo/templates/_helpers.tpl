{{- define "octavo.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $whole := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $whole .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Selects this release's Ray pods: KubeRay names clusters itself and leaves these two labels alone. */}}
{{- define "octavo.selector" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/part-of: {{ include "octavo.fullname" . }}
{{- end -}}

{{- define "octavo.labels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
{{ include "octavo.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "octavo.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}

{{/* KubeRay's name for the Service in front of Serve's proxies. */}}
{{- define "octavo.service" -}}
{{ include "octavo.fullname" . }}-serve-svc
{{- end -}}

{{/* The name that a model's requests and metrics carry; as octavo.cluster.arguments.names_of. */}}
{{- define "octavo.modelName" -}}
{{- if .served_model_name -}}
{{- if kindIs "slice" .served_model_name }}{{ first .served_model_name }}{{ else }}{{ .served_model_name }}{{ end -}}
{{- else if not .model -}}
SmolLM2-135M-Instruct
{{- else if or (hasPrefix "/" .model) (hasPrefix "~" .model) -}}
{{ base .model }}
{{- else -}}
{{ .model }}
{{- end -}}
{{- end -}}

{{- define "octavo.serveConfig" -}}
{{- $models := list -}}
{{- range .Values.models -}}
{{- $given := dict -}}
{{- range $name, $value := . }}{{ if not (kindIs "invalid" $value) }}{{ $_ := set $given $name $value }}{{ end }}{{ end -}}
{{- $models = append $models $given -}}
{{- end -}}
proxy_location: EveryNode
http_options:
  host: 0.0.0.0
  port: 8000
  keep_alive_timeout_s: {{ .Values.serve.keepAliveTimeoutSeconds }}
  {{- with .Values.serve.requestTimeoutSeconds }}
  request_timeout_s: {{ . }}
  {{- end }}
applications:
  - name: octavo
    route_prefix: /
    import_path: octavo.cluster.distributed.application:app
    args:
      ingress_replicas: {{ .Values.ingress_replicas }}
      allowed_origins: {{ toJson .Values.allowed_origins }}
      request_timeout: {{ toJson .Values.request_timeout }}
      enable_log_requests: {{ .Values.enable_log_requests }}
      models: {{- toYaml $models | nindent 8 }}
{{- end -}}

{{- define "octavo.secretEnv" -}}
{{- if .secret.name }}
- name: {{ .variable }}
  valueFrom:
    secretKeyRef:
      name: {{ .secret.name }}
      key: {{ .secret.key }}
{{- end }}
{{- end -}}

{{- define "octavo.env" -}}
- name: OCTAVO_CACHE
  value: /cache/octavo
- name: HF_HOME
  value: /cache/huggingface
- name: RAY_USAGE_STATS_ENABLED
  value: "0"
# Ray drains once more where it is told to end; what the hook before that left of the grace period.
- name: RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S
  value: {{ sub .Values.drain.terminationGracePeriodSeconds (add .Values.drain.preStopSeconds 10) | max 0 | quote }}
{{- include "octavo.secretEnv" (dict "variable" "OCTAVO_API_KEY" "secret" .Values.secrets.apiKeys) }}
{{- include "octavo.secretEnv" (dict "variable" "OCTAVO_ADMIN_API_KEY" "secret" .Values.secrets.adminKey) }}
{{- include "octavo.secretEnv" (dict "variable" "HF_TOKEN" "secret" .Values.secrets.huggingFace) }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "octavo.volumes" -}}
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ .group.shm }}}
- name: cache
  {{- if or .root.Values.modelCache.existingClaim .root.Values.modelCache.create }}
  persistentVolumeClaim:
    claimName: {{ default (printf "%s-models" (include "octavo.fullname" .root)) .root.Values.modelCache.existingClaim }}
  {{- else }}
  emptyDir: {sizeLimit: {{ .root.Values.modelCache.emptyDirSize }}}
  {{- end }}
{{- with .root.Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* A probe of Ray's agent or of Serve's proxy: health pages ask for no token. */}}
{{- define "octavo.probe" -}}
httpGet: {path: {{ .path }}, port: {{ .port }}}
periodSeconds: {{ .period }}
timeoutSeconds: 5
failureThreshold: {{ .failures }}
{{- end -}}

{{/* One Ray pod. Of: root, group, role (head or worker), liveness and readiness (the chart's own). */}}
{{- define "octavo.podTemplate" -}}
{{- $root := .root -}}
{{- $group := .group -}}
{{- $probes := default dict $group.probes -}}
metadata:
  labels:
    {{- include "octavo.selector" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .role }}
    {{- with $group.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $group.podAnnotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- if not (and (eq .role "head") $root.Values.autoscaler.enabled) }}
  automountServiceAccountToken: false
  {{- end }}
  terminationGracePeriodSeconds: {{ $root.Values.drain.terminationGracePeriodSeconds }}
  securityContext: {{- toYaml $root.Values.podSecurityContext | nindent 4 }}
  {{- with $root.Values.image.pullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $group.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $group.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $group.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $group.topologySpreadConstraints }}
  topologySpreadConstraints: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $group.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $group.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  containers:
    - name: ray-{{ .role }}
      image: {{ include "octavo.image" $root }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      securityContext: {{- toYaml $root.Values.securityContext | nindent 8 }}
      env: {{- include "octavo.env" $root | nindent 8 }}
      {{- with $root.Values.extraEnvFrom }}
      envFrom: {{- toYaml . | nindent 8 }}
      {{- end }}
      ports:
        {{- if eq .role "head" }}
        - {name: gcs, containerPort: 6379}
        - {name: dashboard, containerPort: 8265}
        {{- end }}
        - {name: serve, containerPort: 8000}
        - {name: metrics, containerPort: 8080}
      resources: {{- toYaml $group.resources | nindent 8 }}
      startupProbe: {{- $probes.startup | default (include "octavo.probe" (dict "path" "/api/local_raylet_healthz" "port" 52365 "period" 5 "failures" 60) | fromYaml) | toYaml | nindent 8 }}
      livenessProbe: {{- $probes.liveness | default .liveness | toYaml | nindent 8 }}
      readinessProbe: {{- $probes.readiness | default .readiness | toYaml | nindent 8 }}
      lifecycle:
        preStop:
          exec:
            {{- if eq .role "worker" }}
            # Serve starts other replicas for those on a node that drains, before it stops these.
            command:
              - sh
              - -c
              - >-
                ray drain-node --reason DRAIN_NODE_REASON_PREEMPTION --reason-message "the pod has to go"
                --deadline-remaining-seconds {{ $root.Values.drain.preStopSeconds }};
                sleep {{ $root.Values.drain.preStopSeconds }}
            {{- else }}
            command: [sleep, {{ min 10 $root.Values.drain.preStopSeconds | quote }}]
            {{- end }}
      volumeMounts:
        - {name: shm, mountPath: /dev/shm}
        - {name: cache, mountPath: /cache}
        {{- with $root.Values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes: {{- include "octavo.volumes" (dict "root" $root "group" $group) | nindent 4 }}
{{- end -}}
